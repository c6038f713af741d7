"""Reads and writes surfaces: fully measured search spaces, which any strategy can replay in milliseconds.

A surface is a file with one JSON object per line. The first says what was measured, and on which device
(`Head`); every further line is a process (`Process`). `docs/surfaces.md` describes them.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parts.noop import synthetic

from sweeper.core.codec import DecodeError, decode, encode
from sweeper.core.config import Scalar, TrialConfig
from sweeper.core.measurement import DeviceInfo, Failure, FailureKind, Measurement, Window
from sweeper.errors import UserError
from sweeper.schema import SweepSpec

SCHEMA, LICENCE = "sweeper-surface/1", "CC-BY-4.0"
CORRECT = "correct"
"""The `invalidity` of a process that was measured."""

ABOUT_THE_SPACE = ("name", "pipeline", "data", "space", "fix", "baseline")
"""Keys of a specification that say what was measured."""

OUT_OF_MEMORY_SECONDS = 0.5
"""Time that a trial takes to fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The first line of a surface.

    Attributes:
        device: The model of the GPU, or of the processor.
        torch: The version of torch.
        space: The specification, as `sweeper run` reads it.
    """

    schema: str = SCHEMA
    licence: str = LICENCE
    name: str
    device: str
    torch: str = ""
    space: Mapping[str, Any]

    @classmethod
    def of(cls, spec: SweepSpec, device: str, torch: str = "") -> Head:
        """Returns the head of a surface."""
        tree = spec.to_dict()
        space = {name: tree[name] for name in ABOUT_THE_SPACE}
        space["measure"] = {"quality_samples": tree["measure"]["quality_samples"]}
        return cls(name=spec.name, device=device, torch=torch, space=space)


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process, which measured one configuration.

    Attributes:
        configuration: The values of the parameters that are searched.
        baseline: Whether it is the baseline, which may lie outside the space.
        round: Number of its round, in which configurations run once, in random order: all in the first, and
            those that may be the fastest in the others.
        repeated: Whether its round has only a few configurations, to show how much processes differ.
        invalidity: `correct`, or why there is no measurement, by `sweeper.core.measurement.FailureKind`.
        throughput: Samples per second of each window.
        startup_seconds: Time from the start of the process to its first step.
        warmup_seconds: Time from there to the first window.
        peak_gib: Peak memory: of the GPU, or of the process.
        loss: Validation loss after the samples of the space's `measure.quality_samples`; None where it was
            not measured.
        disturbed: What else ran on the machine, in words.
        timestamp: When it ended, in seconds since 1970.
    """

    configuration: Mapping[str, Scalar]
    baseline: bool = False
    round: int
    repeated: bool = False
    invalidity: str = CORRECT
    throughput: tuple[float, ...] = ()
    startup_seconds: float = 0.0
    first_step_seconds: float = 0.0
    warmup_seconds: float = 0.0
    peak_gib: float | None = None
    loss: float | None = None
    disturbed: tuple[str, ...] = ()
    timestamp: float = 0.0

    @property
    def speed(self) -> float:
        """Samples per second over its windows."""
        return statistics.fmean(self.throughput)

    def config(self, spec: SweepSpec) -> TrialConfig:
        """Returns the whole configuration."""
        return spec.baseline_config() if self.baseline else spec.config(self.configuration)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A configuration as it was recorded.

    Attributes:
        throughput: Samples per second, over all processes; 0 if none was measured.
        start_seconds: Time from the start of the process to the first window.
        peak_gib: Peak memory.
        failure: How it failed; empty if it was measured.
        num_processes: Number of processes behind its throughput.
    """

    throughput: float = 0.0
    start_seconds: float = 0.0
    peak_gib: float = 0.0
    failure: str = ""
    num_processes: int = 0


UNKNOWN = Cell(failure=str(FailureKind.UNSUPPORTED))
"""Stands for a configuration that was not recorded: a micro-batch smaller than any in the space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A surface that was read.

    Attributes:
        cells: Cells by the key of their configuration. The speed of a disturbed process counts only if
            there is no other.
        rounds: The repeated processes, round by round: samples per second by key.
    """

    device: str
    spec: SweepSpec
    cells: Mapping[str, Cell]
    rounds: Sequence[Mapping[str, float]]

    @property
    def noise(self) -> list[float]:
        """The logarithms of the ratios of repeated processes to their configuration's median."""
        speeds: dict[str, list[float]] = {}
        for each in self.rounds:
            for key, speed in each.items():
                speeds.setdefault(key, []).append(speed)
        return [math.log(speed / statistics.median(each)) for each in speeds.values() for speed in each]


def read(path: Path) -> Recording:
    """Returns the surface of a file.

    Raises:
        UserError: The file is not a surface.
    """
    head, processes = head_of(path), list(processes_of(path))
    spec = SweepSpec.from_dict(dict(head.space))
    found: dict[str, list[Process]] = {}
    rounds: dict[int, dict[str, float]] = {}
    for each in processes:
        key = each.config(spec).key()
        if not each.repeated:
            found.setdefault(key, []).append(each)
        elif each.throughput:
            rounds.setdefault(each.round, {})[key] = each.speed
    return Recording(
        device=head.device,
        spec=spec,
        cells={key: _cell(each) for key, each in found.items()},
        rounds=[rounds[index] for index in sorted(rounds)],
    )


def _cell(processes: Sequence[Process]) -> Cell:
    measured = [each for each in processes if each.throughput]
    if not measured:
        ((failure, _),) = Counter(each.invalidity for each in processes).most_common(1)
        return Cell(failure=failure)
    clean = [each for each in measured if not each.disturbed] or measured
    return Cell(
        throughput=statistics.fmean(each.speed for each in clean),
        start_seconds=statistics.fmean(each.startup_seconds + each.warmup_seconds for each in clean),
        peak_gib=statistics.median(each.peak_gib or 0.0 for each in measured),
        num_processes=len(clean),
    )


def head_of(path: Path) -> Head:
    """Returns the first line of a surface.

    Raises:
        UserError: The file is not a surface.
    """
    try:
        with path.open(encoding="utf-8") as file:
            head = decode(Head, json.loads(file.readline()))
    except (OSError, ValueError, DecodeError) as error:
        raise UserError(
            f"A surface must be a file as described in docs/surfaces.md, but {path} is not: {error}"
        ) from error
    if head.schema != SCHEMA:
        raise UserError(f"The `schema` of a surface must be {SCHEMA!r}, but {path} has {head.schema!r}.")
    return head


def processes_of(path: Path) -> Iterator[Process]:
    """Yields the processes of a surface; an incomplete last line is left out.

    Raises:
        UserError: A line is not a process.
    """
    with path.open(encoding="utf-8") as file:
        next(file)
        for number, line in enumerate(file, start=2):
            if line.endswith("\n"):
                try:
                    yield decode(Process, json.loads(line))
                except (ValueError, DecodeError) as error:
                    raise UserError(
                        f"Each line of a surface must be a process, but line {number} of {path} is not:"
                        f" {error}"
                    ) from error


def begin(path: Path, head: Head) -> None:
    """Writes the first line of a new surface, or cuts an incomplete last line off an existing one."""
    if path.exists():
        text = path.read_bytes()
        os.truncate(path, text.rfind(b"\n") + 1)
    if not path.exists() or not path.stat().st_size:
        path.write_text(_line(head), encoding="utf-8")


def add(path: Path, process: Process) -> None:
    """Adds a line to a surface."""
    with path.open("a", encoding="utf-8") as file:
        file.write(_line(process))


def _line(value: Head | Process) -> str:
    tree = encode(value)
    if isinstance(value, Process):
        # A line leaves out the defaults.
        usual = {each.name: each.default for each in dataclasses.fields(Process)}
        tree = {name: each for name, each in tree.items() if each not in (usual[name], [])}
    return json.dumps(tree, allow_nan=False) + "\n"


class RecordedSurface:
    """Answers trials from recorded cells, with recorded noise; for `ReplayLauncher`.

    A trial's noise depends on the seed, the configuration and the number of requests for it, so that a
    sweep that is interrupted and continued gets the same noise.
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
        """The device that it simulates, with as much memory as the limit."""
        memory = 0.0 if math.isinf(self.limit_gib) else self.limit_gib
        return DeviceInfo(kind="cuda", name="recorded", uuid="GPU-recorded", memory_gib=memory)

    def best(self) -> float:
        """Returns the highest throughput among the cells that fit."""
        return max(cell.throughput for cell in self.cells.values() if cell.peak_gib <= self.limit_gib)

    def cell(self, config: TrialConfig) -> Cell:
        """Returns the recorded cell of a configuration, or of its micro-batch if it accumulates."""
        return self.cells.get(config.replace({"accumulate_steps": 1}).key(), UNKNOWN)

    def __call__(self, config: TrialConfig) -> Measurement | Failure:
        """Returns a trial's outcome. Its first window stands for the screening, the second for the rest."""
        cell = self.cell(config)
        if cell.failure:
            kind = FailureKind(cell.failure)
            return Failure(kind=kind, message=cell.failure, seconds=OUT_OF_MEMORY_SECONDS)
        if cell.peak_gib > self.limit_gib:
            return Failure(kind=FailureKind.OOM, message="out of memory", seconds=OUT_OF_MEMORY_SECONDS)
        key = config.key()
        turn = self._asked[key] = self._asked.get(key, 0) + 1
        draw = random.Random(f"{self.seed} {key} {turn}")
        throughput = cell.throughput * math.exp(draw.choice(self.noise))
        measured = synthetic(throughput)
        short = Window(start_s=measured.windows[0].start_s, seconds=1.0, steps=100, samples=round(throughput))
        return dataclasses.replace(
            measured,
            device=self.device,
            windows=(short, short),
            startup_seconds=cell.start_seconds,
            gpu_mem_peak_gib=cell.peak_gib,
        )
