"""Evaluates steps that were taken apart (`script.inside.diagnoser`): phases, and each part's cost alone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeper.core.measurement import Breakdown, Diagnosis
from sweeper.script.inside import diagnoser
from sweeper.script.inside.outside import WRITES
from sweeper.system.cpu import usable_cpus

ARITHMETIC = ("forward", "backward", "optimizer")
NOT_TRAINING = ("evaluation",)
ON_THE_WAY = ("data", "preparation", *NOT_TRAINING)
"""Phases that a step does not need if its batch is already prepared."""


def usual_seconds(step_seconds: float, *, on_gpu: bool) -> float:
    """Returns about how long it takes to take steps apart."""
    part = _clip(diagnoser.MIN_PART_STEPS * step_seconds, diagnoser.MAX_PART_SECONDS)
    in_turns = _clip(diagnoser.MIN_IN_TURNS * step_seconds, diagnoser.MAX_SECONDS_IN_TURNS)
    # All but the batch and its half, and the end.
    num_parts = len(diagnoser.PARTS) - 2 - (0 if on_gpu else len(diagnoser.OF_A_GPU))
    return num_parts * part + in_turns


def _clip(seconds: float, longest: float) -> float:
    return min(max(seconds, diagnoser.MIN_PART_SECONDS), longest)


@dataclass(slots=True)
class StepAnalysis:
    """The parts of a script's steps, as they arrive.

    Attributes:
        parts: Messages by the part that they report.
        outside: Descriptions of what the script did outside of its folder.
    """

    parts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    outside: dict[str, None] = field(default_factory=dict)

    def add(self, message: Mapping[str, Any]) -> None:
        """Adds a message."""
        self.parts.setdefault(message["part"], message)

    @property
    def is_done(self) -> bool:
        """Whether nothing more will come."""
        return "done" in self.parts

    def breakdown(self) -> Breakdown | None:
        """Returns the phases of a mean step; None if they were not reported."""
        if not self._num_steps:
            return None
        return Breakdown(
            data_s=self._per_step("data") + self._preparation_s(),
            h2d_s=self._per_step("preparation") - self._preparation_s(),
            forward_s=self._per_step("forward"),
            backward_s=self._per_step("backward"),
            optimizer_s=self._per_step("optimizer"),
            host_gap_s=self._per_step("rest"),
        )

    def diagnosis(self, folder: Path, *, on_gpu: bool, is_guarded: bool = False) -> Diagnosis:
        """Returns the cost of each part alone, as far as it was reported.

        Args:
            folder: Folder that the script ran in; its lines are named relative to it.
            is_guarded: Whether it could not write outside of its sandbox, whatever it tried.
        """
        loader, halves = self.parts.get("loader"), self.parts.get("halves", {})
        waits = self.parts.get("waits")
        return Diagnosis(
            device_samples_s=self._samples_per_second_of_one_batch(),
            loader_samples_s=loader["samples"] / loader["seconds"] if loader and loader["seconds"] else None,
            half_step_s=halves.get("half"),
            full_step_s=halves.get("full"),
            blocked_s=None if on_gpu else self._blocked_s(),
            busy_s=self.parts.get("kernels", {}).get("seconds"),
            issue_s=self._issue_s() if on_gpu else None,
            sync_places=tuple(_places(waits["lines"], folder)) if waits else None,
            preparation_s=self._preparation_s(),
            usable_cpus=usable_cpus(),
            lines=self._lines(folder),
            outside=tuple(deed for deed in self.outside if not (is_guarded and deed.startswith(WRITES))),
        )

    @property
    def _as_it_is(self) -> Mapping[str, Any]:
        return self.parts.get("as it is", {})

    @property
    def _num_steps(self) -> int:
        return int(self._as_it_is.get("steps", 0))

    def _per_step(self, phase: str) -> float:
        return float(self._as_it_is["wall"].get(phase, 0.0) / self._num_steps) if self._num_steps else 0.0

    def _preparation_s(self) -> float:
        """Returns the seconds of a step in which the script changes its batch, without copies."""
        return max(0.0, self._per_step("preparation") - float(self._as_it_is.get("copy", 0.0)))

    def _lines(self, folder: Path) -> dict[str, tuple[str, ...]]:
        """Returns the user's lines by phase, the most frequent first."""
        phases = dict(self.parts.get("lines", {}).get("lines", {}))
        before_the_model = phases.pop("preparation", [])
        if self._preparation_s() > self._per_step("preparation") / 2:
            both = [*phases.get("data", []), *before_the_model]
            phases["data"] = sorted(both, key=lambda line: -line[2])
        else:
            phases["copy"] = before_the_model
        return {
            phase: tuple(_places((line[:2] for line in lines), folder))
            for phase, lines in phases.items()
            if lines
        }

    def _issue_s(self) -> float | None:
        """Returns the seconds of a step in which the process launches work, or waits to launch it."""
        if not self._num_steps:
            return None
        return float(sum(self._as_it_is["host"].get(name, 0.0) for name in ARITHMETIC) / self._num_steps)

    def _samples_per_second_of_one_batch(self) -> float | None:
        batch = self.parts.get("one batch")
        if batch is None or not batch["samples"]:
            return None
        return float(batch["samples"] / sum(s for name, s in batch["wall"].items() if name not in ON_THE_WAY))

    def _blocked_s(self) -> float | None:
        if not self._num_steps:
            return None
        wall, cpu = self._as_it_is["wall"], self._as_it_is["cpu"]
        idle = sum(max(0.0, wall.get(name, 0.0) - cpu.get(name, 0.0)) for name in ARITHMETIC)
        return float(max(0.0, idle - self._as_it_is["waited"]) / self._num_steps)


def _places(lines: Iterable[Sequence[Any]], folder: Path) -> Iterator[str]:
    """Yields `file:line`, relative to a folder if that is shorter."""
    base = folder.resolve()
    for path, line in lines:
        yield f"{min(path, os.path.relpath(path, base), key=len)}:{line}"
