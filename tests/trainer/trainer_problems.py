"""A pipeline of sequences whose lengths differ, in tensors or (`data.source`) read from a source.

model.row_seconds   processor time that one sample takes in the `rows` loader
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sweeper.core.config import TrialConfig
from sweeper.trainer.pipeline import Batch, Pipeline, Prepared, Samples

LONGEST, ROWS, NUM_VAL = 24, 600, 100


class Table:
    """A source: rows of some tensors, read by index."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = dict(tensors)

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def read(self, index: Tensor) -> Batch:
        return {name: tensor[index] for name, tensor in self.tensors.items()}


def draw() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    count = rng.integers(2, LONGEST + 1, ROWS + NUM_VAL)
    x = rng.standard_normal((ROWS + NUM_VAL, LONGEST)).astype(np.float32)
    x[np.arange(LONGEST) >= count[:, None]] = 0
    return {"x": x, "count": count, "y": (np.tanh(x).sum(1) / count).astype(np.float32)}


def prepare(data: Mapping[str, Any]) -> Prepared | Table:
    arrays = draw()
    if data.get("source"):
        return Table({name: torch.from_numpy(array) for name, array in arrays.items()})
    return Prepared(arrays=arrays, synthetic=True)


class Mean(nn.Module):
    """Each element through the same layers; their mean over the sequence's own length."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor, count: Tensor) -> Tensor:
        there = torch.arange(x.shape[1], device=x.device) < count[:, None]
        return (self.each(x.unsqueeze(-1)).squeeze(-1) * there).sum(1) / count


def padded(tensors: Mapping[str, Tensor], index: Tensor, length: int) -> Batch:
    return {
        name: tensor[index, :length] if name == "x" else tensor[index] for name, tensor in tensors.items()
    }


def sequences(tensors: Mapping[str, Tensor], row: Any = None) -> Samples:
    count = tensors["count"]
    return Samples(tensors=tensors, length=len(count), gather=padded, lengths=count, row=row)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.mse_loss(model(batch["x"], batch["count"]).float(), batch["y"])


def build(config: TrialConfig, prepared: Prepared | Table) -> Pipeline:
    if isinstance(prepared, Table):
        train = Samples.of(prepared, torch.arange(ROWS))
        val = Samples.of(prepared, torch.arange(ROWS, ROWS + NUM_VAL))
        return Pipeline(model=Mean(), train=train, val=val, loss=loss)
    tensors = {name: torch.from_numpy(array) for name, array in prepared.arrays.items()}
    busy_seconds = float(config.model.get("row_seconds") or 0.0)

    def row(i: int, length: int) -> dict[str, Tensor]:
        end = time.thread_time() + busy_seconds
        while time.thread_time() < end:
            pass
        return {name: tensor[i, :length] if name == "x" else tensor[i] for name, tensor in tensors.items()}

    train = sequences({name: tensor[:ROWS] for name, tensor in tensors.items()}, row)
    val = sequences({name: tensor[ROWS:] for name, tensor in tensors.items()})
    return Pipeline(model=Mean(), train=train, val=val, loss=loss)
