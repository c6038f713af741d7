"""Trainings with what people ask about in public threads: one name for each.

python asks.py NAME
torchrun --nproc-per-node=2 asks.py accumulated_ranks
"""

import gc
import os
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler, TensorDataset


class Augmented(Dataset):
    """Rows that draw at random; a worker is slow to begin, as where it opens files or imports a lot."""

    def __init__(self, rows=640):
        self.rows = torch.randn(rows, 3, 24, 24)
        self.labels = torch.randint(0, 10, (rows,))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        begin()
        row = self.rows[index]
        row = row.flip(2) if torch.rand(()) < 0.5 else row
        return row + 0.1 * torch.randn_like(row), self.labels[index]


BEGUN = set()


def begin():
    """Takes half a second once in each process."""
    if os.getpid() not in BEGUN:
        BEGUN.add(os.getpid())
        time.sleep(0.5)


class Table(Dataset):
    """Rows of a table that is too large to be collated once."""

    ROWS, COLUMNS = 30_000_000, 128

    def __init__(self):
        # It takes no memory: nothing is written.
        self.table = np.zeros((self.ROWS, self.COLUMNS), np.float32)
        self.labels = np.zeros(self.ROWS, np.int64)

    def __len__(self):
        return self.ROWS

    def __getitem__(self, index):
        return self.table[index] + np.float32(0.5), self.labels[index]


class Projected(Dataset):
    """Rows that are computed by BLAS, and draw at random."""

    def __init__(self, rows=2_000):
        self.rows = np.random.default_rng(0).random((rows, 256, 48), dtype=np.float32)
        self.matrix = np.random.default_rng(1).random((48, 256), dtype=np.float32)
        self.labels = torch.randint(0, 10, (rows,))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        noise = np.random.random(self.rows[index].shape).astype(np.float32)
        whole = (self.rows[index] + 0.01 * noise) @ self.matrix @ self.matrix.T
        return torch.from_numpy(whole.mean(0)), self.labels[index]


class Objects(Dataset):
    """Rows that are Python objects, a million of them."""

    def __init__(self, rows=600_000):
        self.rows = [{"text": [number % 97, number % 89], "label": number % 10} for number in range(rows)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        return torch.randn(64) + row["text"][0] / 97, row["label"]


def network(width):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )


ASKS = {
    "slow_workers": "persistent_workers",
    "large_table": "loader",
    "blas_in_workers": "worker_threads",
    "many_objects": "collector",
    "accumulated_ranks": "exchange",
}
"""The change that answers each."""


def loader_of(name):
    if name == "slow_workers":
        return DataLoader(Augmented(), batch_size=32, shuffle=True, num_workers=2), 3 * 24 * 24
    if name == "large_table":
        data = Table()
        sampler = RandomSampler(data, replacement=True, num_samples=100_000)
        return DataLoader(data, batch_size=256, sampler=sampler), Table.COLUMNS
    if name == "blas_in_workers":
        return DataLoader(Projected(), batch_size=32, shuffle=True, num_workers=2), 48
    assert name == "many_objects"
    sampler = RandomSampler(data := Objects(), replacement=True, num_samples=50_000)
    return DataLoader(data, batch_size=64, sampler=sampler), 64


def accumulate():
    """Trains in ranks that exchange gradients at each of the four backward passes of a step."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rows = TensorDataset(torch.randn(2048, 1024), torch.randint(0, 10, (2048,)))
    sampler = DistributedSampler(rows)
    loader = DataLoader(rows, batch_size=16, sampler=sampler)
    layers = [nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(1000):
        sampler.set_epoch(epoch)
        for number, (x, labels) in enumerate(loader, 1):
            loss = nn.functional.cross_entropy(model(x), labels) / 4
            loss.backward()
            if number % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {4 * loss.item():.4f}", flush=True)


def main(name):
    if name == "accumulated_ranks":
        accumulate()
        return
    torch.manual_seed(0)
    np.random.seed(0)
    loader, width = loader_of(name)
    model = network(width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    history = []
    for epoch in range(1000):
        for step, (rows, labels) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(rows), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if name == "many_objects":
                history.append((epoch, step, {"loss": loss.item(), "size": [len(rows)]}))
                if step % 20 == 0:
                    # "To free memory", as many scripts do.
                    gc.collect()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
