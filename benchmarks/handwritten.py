"""The tabular MLP's training step as one would write it by hand for speed: the target for our trainer.

python benchmarks/handwritten.py [fp32|bf16 [BATCH [THREADS]]]            prints samples/s
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

ROWS, FEATURES, HIDDEN, BATCH = 200_000, 30, 128, 512
SAMPLES = 1_000_000
"""Number of samples that are timed."""


def batches(x: Tensor, y: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields (x, y) [size] for ever, in a new order each epoch, without the incomplete last batch."""
    while True:
        order = torch.randperm(len(y), device=y.device)
        for index in order[: len(y) // size * size].split(size):
            yield x.index_select(0, index), y.index_select(0, index)


def training(precision: str = "fp32", device: str = "cpu", size: int = BATCH) -> Callable[[int], Tensor]:
    """Returns a function that trains for a number of steps and returns the last loss."""
    torch.manual_seed(0)
    x, y = torch.randn(ROWS, FEATURES, device=device), torch.randn(ROWS, device=device)
    model = nn.Sequential(
        nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    source = batches(x, y, size)
    bf16 = torch.autocast(device, dtype=torch.bfloat16) if precision == "bf16" else None

    def train(steps: int) -> Tensor:
        for _ in range(steps):
            batch, target = next(source)
            with bf16 or contextlib.nullcontext():
                loss = nn.functional.mse_loss(model(batch).squeeze(-1), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss

    return train


if __name__ == "__main__":
    given = [*sys.argv[1:], *("fp32", str(BATCH), "1")[len(sys.argv) - 1 :]]
    size = int(given[1])
    torch.set_num_threads(int(given[2]))
    train, steps = training(given[0], size=size), SAMPLES // size
    train(steps // 10)
    began = time.perf_counter()
    train(steps).item()
    print(steps * size / (time.perf_counter() - began))
