"""Values that usually work well, by GPU and by data size.

They come from the five guides that the shipped search spaces follow. They are first guesses: a
search begins with them and trusts what it measures.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

MEMORY_TARGET = (0.5, 0.8)
"""Share of the GPU's memory that a well-chosen batch fills; above it, running out is likely."""

ACCUMULATION = "half the batch, accumulated over two steps"
"""A remedy for running out of memory that does not change what is learnt."""

RECOMPUTATION = "activations recomputed instead of stored"
"""Another remedy, about a third slower per sample."""

MAX_WORKERS = 8
ROWS_PER_WORKER = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Values that were good on a class of GPUs.

    Attributes:
        pattern: Regular expression that matches the NVML names of these GPUs.
    """

    title: str
    pattern: str
    batch_size: int
    hidden_size: int
    num_workers: int


PRESETS: Sequence[Preset] = (
    Preset(
        title="A100, H100 and larger",
        pattern=r"\b(A100|A800|H[128]00|H20|GH200|G?B[23]00)\b",
        batch_size=512,
        hidden_size=256,
        num_workers=16,
    ),
    Preset(title="A10", pattern=r"\b(A10G?|L4)\b", batch_size=512, hidden_size=256, num_workers=8),
    Preset(
        title="V100 and RTX 3090",
        pattern=r"V100|\b(RTX [345]090|A30|A40|L40S?|RTX A[56]000)\b",
        batch_size=256,
        hidden_size=128,
        num_workers=8,
    ),
    Preset(
        title="RTX 2080 and 3080",
        pattern=r"\b(RTX [2345]0[5678]0|GTX|T4)\b",
        batch_size=128,
        hidden_size=128,
        num_workers=4,
    ),
)
"""Presets by GPU; the first match applies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSize:
    """Adjusts a preset to the number of training samples.

    Attributes:
        above: Smallest number of samples to which this applies.
    """

    title: str
    above: int
    batch_factor: int
    most_workers: int


SIZES: Sequence[DataSize] = (
    DataSize(title="more than a million samples", above=1_000_000, batch_factor=2, most_workers=16),
    DataSize(title="", above=100_000, batch_factor=1, most_workers=MAX_WORKERS),
    DataSize(title="fewer than 100,000 samples", above=0, batch_factor=1, most_workers=4),
)


def preset_for(device: str) -> Preset | None:
    """Returns the preset for a GPU by its name; None for an unknown one and for a CPU."""
    return next((preset for preset in PRESETS if re.search(preset.pattern, device)), None)


def size_of(samples: int) -> DataSize:
    """Returns the entry for a number of training samples; for 0, the one that changes nothing."""
    return next(size for size in SIZES if (samples or SIZES[1].above) >= size.above)


def workers_for(cores: int, batch_size: int, max_workers: int = MAX_WORKERS) -> int:
    """Returns the guides' number of workers: the least of half the cores, one per 32 rows, `max_workers`."""
    return max(1, min(cores // 2, max_workers, batch_size // ROWS_PER_WORKER))
