"""A small training with what a wrong change could touch: an order, dropout, batch norm, validation."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2010, 20, generator=generator)
    y = (x[:, :4].sum(1) > 0).long()
    train = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    check = DataLoader(TensorDataset(x[:300], y[:300]), batch_size=32)
    model = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(4):
        model.train()
        for batch, labels in train:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), labels).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for batch, labels in check:
                nn.functional.cross_entropy(model(batch), labels)


if __name__ == "__main__":
    main()
