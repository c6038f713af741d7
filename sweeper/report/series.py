"""Reads a trial's telemetry series and thins them for charts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sweeper.core.job import SERIES

Numbers = NDArray[np.float64]
MAX_POINTS = 400


@dataclass(frozen=True, slots=True)
class TimedValues:
    """The known part of one series: `seconds` of the monotonic clock, and the values at these times."""

    seconds: Numbers
    values: Numbers


Series = Mapping[str, TimedValues]


def read_series(folder: Path, names: Iterable[str]) -> Series:
    """Returns the series of a trial by name, without absent, broken or empty ones."""
    parent = folder / SERIES
    moments = _load(parent / "time_s.npy")
    if moments is None:
        return {}
    series = {}
    for name in names:
        values = _load(parent / f"{name}.npy")
        if values is None or len(values) != len(moments):
            continue
        mask = np.isfinite(values) & np.isfinite(moments)
        if mask.any():
            series[name] = TimedValues(moments[mask], values[mask])
    return series


def _load(path: Path) -> Numbers | None:
    try:
        values = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    numeric = values.ndim == 1 and values.dtype.kind in "fiu"
    return values.astype(np.float64) if numeric else None


def downsample(column: TimedValues, max_points: int = MAX_POINTS) -> TimedValues:
    """Returns a series of at most `max_points` points: means of blocks of equal length."""
    count = len(column.values)
    if count <= max_points:
        return column
    edges = np.linspace(0, count, max_points + 1).astype(int)
    blocks = list(itertools.pairwise(edges))
    return TimedValues(
        np.array([column.seconds[a:b].mean() for a, b in blocks]),
        np.array([column.values[a:b].mean() for a, b in blocks]),
    )
