"""Trains a small classifier. Nothing here knows about sweeper."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--num-workers", type=int, default=2)
parser.add_argument("--hidden-size", type=int, default=128)
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()

torch.manual_seed(0)
x = torch.randn(20_000, 32)
y = (x[:, :4].sum(dim=1) > 0).long()
loader = DataLoader(
    TensorDataset(x, y), batch_size=args.batch_size, num_workers=args.num_workers, shuffle=True
)
model = nn.Sequential(nn.Linear(32, args.hidden_size), nn.ReLU(), nn.Linear(args.hidden_size, 2))
optimizer = torch.optim.AdamW(model.parameters())

for epoch in range(args.epochs):
    began, seen = time.perf_counter(), 0
    for step, (features, target) in enumerate(loader, start=1):
        loss = nn.functional.cross_entropy(model(features), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += len(target)
        if step % 50 == 0:
            rate = seen / (time.perf_counter() - began)
            print(f"epoch {epoch} step {step} loss {loss.item():.4f} {rate:.0f} samples/s", flush=True)
            began, seen = time.perf_counter(), 0
