"""A search space that was measured completely, so that any strategy can replay it in milliseconds.

A surface is a file with a line per process (`benchmarks/surfaces.py` writes it); the noise is how much
repeated processes of a few of its configurations differed.
"""

from __future__ import annotations

import csv
import dataclasses
import math
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.config import TrialConfig
from sweeper.core.measurement import DeviceInfo, Failure, FailureKind, Measurement, Window
from sweeper.testing.noop import made_up

OUT_OF_MEMORY_SECONDS = 0.5
"""Time that a trial takes to run out of memory, beyond its start-up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A configuration as it was recorded.

    Attributes:
        throughput: Samples per second, over all processes.
        start_seconds: From the start of the process to the first window.
        peak_gib: Peak memory.
    """

    throughput: float
    start_seconds: float
    peak_gib: float


def cells_of(path: Path) -> dict[str, Cell]:
    """Returns the recorded cells by configuration key; disturbed rows count only if there are no others."""
    rows: dict[str, list[Mapping[str, str]]] = {}
    for row in _rows(path):
        rows.setdefault(row["key"], []).append(row)
    found = {}
    for key, each in rows.items():
        clean = [row for row in each if not row["flags"]] or each
        found[key] = Cell(
            throughput=statistics.fmean(_speed(row) for row in clean),
            start_seconds=statistics.fmean(float(row["startup_s"]) + float(row["warmup_s"]) for row in clean),
            peak_gib=statistics.median(float(row["memory_gib"]) for row in each),
        )
    return found


def noise_of(path: Path) -> list[float]:
    """Returns the log ratios of repeated processes to their configuration's median."""
    speeds: dict[str, list[float]] = {}
    for row in _rows(path):
        speeds.setdefault(row["key"], []).append(_speed(row))
    return [
        math.log(speed / middle)
        for each in speeds.values()
        if (middle := statistics.median(each))
        for speed in each
    ]


def rounds_of(path: Path) -> list[dict[str, float]]:
    """Returns the repeated processes round by round: samples per second by configuration key."""
    rounds: dict[str, dict[str, float]] = {}
    for row in _rows(path):
        rounds.setdefault(row["pass"], {})[row["key"]] = _speed(row)
    return list(rounds.values())


def _rows(path: Path) -> Iterator[Mapping[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from (row for row in csv.DictReader(file) if row["outcome"] == "measured")


def _speed(row: Mapping[str, str]) -> float:
    return statistics.fmean(float(each) for each in row["windows"].split())


class RecordedSurface:
    """Answers trials from recorded cells, with recorded noise; for `ReplayLauncher`.

    A trial's noise depends on the seed, the configuration and how often it was asked for, so that a
    sweep which is cut off and continued finds the same.
    """

    def __init__(
        self, cells: Mapping[str, Cell], noise: Sequence[float], *, limit_gib: float = math.inf, seed: int = 0
    ) -> None:
        """Reads nothing from disk.

        Args:
            limit_gib: Cells whose peak is above it run out of memory.
        """
        self.cells, self.noise, self.limit_gib, self.seed = cells, noise, limit_gib, seed
        self._asked: dict[str, int] = {}

    @property
    def device(self) -> DeviceInfo:
        """The device it stands for: one with as much memory as the limit says."""
        memory = 0.0 if math.isinf(self.limit_gib) else self.limit_gib
        return DeviceInfo(kind="cuda", name="recorded", uuid="GPU-recorded", memory_gib=memory)

    def best(self) -> float:
        """Returns the highest throughput among the cells that fit."""
        return max(cell.throughput for cell in self.cells.values() if cell.peak_gib <= self.limit_gib)

    def cell(self, config: TrialConfig) -> Cell:
        """Returns the recorded cell of a configuration, or of its micro-batch if it accumulates."""
        return self.cells[config.replace({"accumulate_steps": 1}).key()]

    def __call__(self, config: TrialConfig) -> Measurement | Failure:
        """Returns a trial's outcome. Its first window is a short one, the second the rest."""
        cell = self.cell(config)
        if cell.peak_gib > self.limit_gib:
            return Failure(kind=FailureKind.OOM, message="out of memory", seconds=OUT_OF_MEMORY_SECONDS)
        key = config.key()
        turn = self._asked[key] = self._asked.get(key, 0) + 1
        draw = random.Random(f"{self.seed} {key} {turn}")
        throughput = cell.throughput * math.exp(draw.choice(self.noise))
        measured = made_up(throughput)
        short = Window(start_s=measured.windows[0].start_s, seconds=1.0, steps=100, samples=round(throughput))
        return dataclasses.replace(
            measured,
            device=self.device,
            windows=(short, short),
            startup_seconds=cell.start_seconds,
            gpu_mem_peak_gib=cell.peak_gib,
        )
