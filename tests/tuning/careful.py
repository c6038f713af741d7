"""A small training with all that a careful person adds: augmentation, epochs that differ, accumulation,
clipping, a scaler, a schedule, averaged weights."""

import random
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WORKERS = int(sys.argv[1]) if len(sys.argv) > 1 else 0
ACCUMULATED = 2


class Pictures(Dataset):
    """Pictures that are cropped at random, and seldom turned; their noise differs by epoch."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        self.pictures = torch.randn(1500, 1, 12, 12, generator=generator)
        self.labels = (self.pictures[:, 0, 2:10, 2:10].mean((1, 2)) > 0).long()
        self.own = random.Random(5)
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.pictures)

    def crop(self, picture):
        top, left = torch.randint(0, 3, (2,)).tolist()
        return picture[:, top : top + 10, left : left + 10]

    def turn(self, picture):
        return picture.flip(2) if self.own.random() < 0.001 else picture

    def noise(self, picture):
        return picture + 0.01 * self.epoch

    def __getitem__(self, index):
        return self.noise(self.turn(self.crop(self.pictures[index]))), self.labels[index]


class Loss(nn.Module):
    def forward(self, outputs, labels):
        return nn.functional.cross_entropy(outputs, labels, label_smoothing=0.1)


def main() -> None:
    data = Pictures()
    loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=WORKERS)
    check = DataLoader(Pictures(), batch_size=50)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 64, 32),
        nn.Linear(32, 2),
    )
    loss_of = Loss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    for epoch in range(4):
        data.epoch = epoch
        model.train()
        for number, (pictures, labels) in enumerate(loader):
            scaler.scale(loss_of(model(pictures), labels) / ACCUMULATED).backward()
            if number % ACCUMULATED == ACCUMULATED - 1:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                schedule.step()
        model.eval()
        with torch.no_grad():
            for pictures, labels in check:
                loss_of(model(pictures), labels)


if __name__ == "__main__":
    main()
