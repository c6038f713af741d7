"""Computes the cost of a sweep: how long its processes ran and how much energy the GPUs drew."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.gpu_series import by_rank, of_rank
from sweeper.core.job import ANYWHERE, OUTCOME, read_job, read_outcome
from sweeper.core.place import read_place
from sweeper.errors import EnvironmentStopError
from sweeper.report.series import Series, read_series
from sweeper.sweep.folder.load import LoadedSweep

PAUSE_SECONDS = 60.0
"""Gap between two processes beyond which the sweep counts as stopped and continued."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of a sweep.

    Attributes:
        seconds: Time in which something ran, without pauses between two runs of the sweep.
        joules: Energy of the GPUs over all processes; None if no power was measured.
        began: Wall time at which the first process began; `ended` is when the last one ended. None if
            none has ended.
    """

    seconds: float
    processes: int
    joules: float | None = None
    began: float | None = None
    ended: float | None = None


def cost_of(sweep: LoadedSweep) -> Cost:
    """Returns the cost of a sweep."""
    parents = (sweep.journal.setup_folder(""), *sweep.journal.race_folders())
    others = [folder for parent in parents for folder in _folders(parent)]
    ran = [*_trials(sweep), *((folder, *_span(folder)) for folder in others)]
    spans = [(begin, end) for _, begin, end in ran if 0 < begin <= end]
    return Cost(
        seconds=covered_seconds(spans),
        processes=len(spans),
        joules=total_joules(use for folder, _, ended in ran for use in uses_of(folder, ended)),
        began=min((begin for begin, _ in spans), default=None),
        ended=max((end for _, end in spans), default=None),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """The energy that a GPU drew while a process used it.

    Attributes:
        gpu: The worker and the GPU.
        began: Wall time at which the telemetry began; `ended` is when it ended.
    """

    gpu: tuple[str, str]
    began: float
    ended: float
    joules: float


_POWER = ("gpu_energy_j", "gpu_power_w")


def uses_of(folder: Path, ended: float) -> Iterator[Use]:
    """Yields the energy that the process in `folder` used, for each of its GPUs.

    Args:
        ended: Wall time at which it ended.
    """
    try:
        job = read_job(folder)
        device, count = job.device, job.config.device.count
    except (OSError, EnvironmentStopError):
        device, count = "", 1
    place = read_place(folder)
    # On a cluster, the worker chooses the devices, and often numbers those of each job from 0.
    devices = (place.gpu if device == ANYWHERE else device).split(",")
    worker = f"{place.host} {place.job or place.worker}"
    names = [of_rank(name, rank) for rank in range(count) for name in _POWER]
    for rank, series in enumerate(by_rank(read_series(folder, names), count)):
        joules = joules_of(series)
        if joules is not None:
            gpu = devices[rank] if rank < len(devices) else f"{devices[0]}+{rank}"
            seconds = max(float(column.seconds[-1] - column.seconds[0]) for column in series.values())
            yield Use(gpu=(worker, gpu), began=ended - seconds, ended=ended, joules=joules)


def total_joules(uses: Iterable[Use]) -> float | None:
    """Returns the energy of all GPUs; None if none was measured.

    Processes that take turns on a GPU each measure all of its energy, so time that several of them cover
    counts once.
    """
    total: float | None = None
    until: dict[tuple[str, str], float] = defaultdict(lambda: -math.inf)
    for use in sorted(uses, key=lambda use: use.began):
        end = until[use.gpu]
        length = use.ended - use.began
        alone = max(0.0, use.ended - max(use.began, end))
        total = (total or 0.0) + (use.joules * alone / length if length else 0.0)
        until[use.gpu] = max(end, use.ended)
    return total


def _trials(sweep: LoadedSweep) -> Iterator[tuple[Path, float, float]]:
    """Yields folder, start and end of each finished trial."""
    for record in sweep.table.finished_trials():
        if record.outcome is not None:
            yield Path(record.folder), record.created_at, record.outcome.finished_at


def _folders(parent: Path) -> Iterator[Path]:
    if parent.is_dir():
        yield from sorted(folder for folder in parent.iterdir() if (folder / OUTCOME).is_file())


def _span(folder: Path) -> tuple[float, float]:
    """Returns start and end of a process; 0 if its files cannot be read."""
    try:
        job, outcome = read_job(folder), read_outcome(folder)
    except (OSError, EnvironmentStopError):
        return 0.0, 0.0
    return job.created_at, outcome.finished_at if outcome is not None else 0.0


def covered_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """Returns the seconds that spans cover together; short gaps between them count, pauses do not."""
    total, until = 0.0, -math.inf
    for begin, end in sorted(spans):
        if begin - until > PAUSE_SECONDS:
            total += end - begin
        else:
            total += max(0.0, end - until)
        until = max(until, end)
    return float(total)


def joules_of(series: Series) -> float | None:
    """Returns the energy of a trial from the card's counter, else from its power over time."""
    counted = series.get("gpu_energy_j")
    if counted is not None and len(counted.values) > 1:
        return max(0.0, float(counted.values[-1] - counted.values[0]))
    power = series.get("gpu_power_w")
    if power is None or len(power.values) < 2:
        return None
    from scipy.integrate import trapezoid

    return float(trapezoid(power.values, power.seconds))
