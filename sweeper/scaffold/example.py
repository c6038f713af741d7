"""The training of `sweeper tune --example`, for who has no script at hand."""

from __future__ import annotations

from pathlib import Path

from sweeper.errors import UserError
from sweeper.system.files import make_folder, write_atomic

FOLDER = "sweeper-example"
FILE = "train.py"
TRAINING = '''\
"""Trains a small network on rows that are handed out one at a time, which is too slow on purpose."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, count=60_000):
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(count, 30, generator=generator)
        self.y = torch.tanh(self.x.mean(1)) + 0.1 * torch.randn(count, generator=generator)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(Rows(), batch_size=64, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Linear(30, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(20):
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            loss = nn.functional.mse_loss(model(x).squeeze(1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
'''


def write_example(folder: Path) -> Path:
    """Writes the training into a folder, which is created; returns its file.

    Raises:
        UserError: Something else is in the folder, or it cannot be written.
    """
    path = folder / FILE
    if path.is_file() and path.read_text(encoding="utf-8", errors="replace") == TRAINING:
        return path
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"`--example` needs an empty folder, but got {str(folder)!r}. Move it away.")
    try:
        make_folder(folder)
        write_atomic(path, TRAINING)
    except OSError as error:
        raise UserError(
            f"`--example` writes into {str(folder.absolute())!r}: {error.strerror}."
            " Run it in a folder that you may write to."
        ) from None
    return path
