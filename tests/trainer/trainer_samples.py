"""Samples whose batches can be told: each has its own number."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sweeper.trainer.data.protocol import Loader
from sweeper.trainer.pipeline import Batch, Samples

LENGTH, LONGEST = 103, 12


def numbered() -> Samples:
    """103 samples; `i` is a sample's number, and `x` half of it."""
    number = torch.arange(LENGTH)
    return Samples(tensors={"i": number, "x": number * 0.5}, length=LENGTH)


def padded(tensors: Mapping[str, Tensor], index: Tensor, length: int) -> Batch:
    """Gathers samples whose `x` is cut or padded to `length`."""
    return {
        name: tensor[index, :length] if name == "x" else tensor[index] for name, tensor in tensors.items()
    }


def of_lengths(**changes: Any) -> Samples:
    """103 samples of 1 to 12 elements: `x` repeats a sample's number over its length, then zeros."""
    count = 1 + torch.arange(LENGTH) * 7 % LONGEST
    x = torch.arange(LENGTH)[:, None] * (torch.arange(LONGEST) < count[:, None])
    samples = Samples(
        tensors={"x": x, "count": count, "i": torch.arange(LENGTH)},
        length=LENGTH,
        gather=padded,
        lengths=count,
    )
    return dataclasses.replace(samples, **changes)


def batches(loader: Loader, num: int) -> list[Batch]:
    """The next batches, as a step gets them."""
    found = []
    for _ in range(num):
        batch, size, length = loader.next()
        batch = loader.materialise(loader.to_device(batch), length)
        assert {len(tensor) for tensor in batch.values()} == {size}
        found.append(batch)
    return found
