"""A script's steps taken apart (`sweeper.inject.diagnoser`): its phases, and what each part costs alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeper.core.measurement import Breakdown, Diagnosis
from sweeper.system.cpu import usable_cpus

ARITHMETIC = ("forward", "backward", "optimizer")
NOT_TRAINING = ("evaluation",)


@dataclass(slots=True)
class TakenApart:
    """Parts of a diagnostic run, as they arrive.

    Attributes:
        parts: Messages by the part that they report.
        outside: What the script did outside of its folder.
    """

    parts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    outside: dict[str, None] = field(default_factory=dict)

    def take(self, message: Mapping[str, Any]) -> None:
        """Adds a message."""
        self.parts.setdefault(message["part"], message)

    @property
    def is_done(self) -> bool:
        """Whether nothing more will come."""
        return "done" in self.parts

    def breakdown(self) -> Breakdown | None:
        """Returns the phases of a mean step; None if it was not reported."""
        found = self.parts.get("as it is")
        if found is None or not found["steps"]:
            return None
        per_step = {name: seconds / found["steps"] for name, seconds in found["wall"].items()}
        return Breakdown(
            data_s=per_step.get("data", 0.0),
            h2d_s=per_step.get("copy", 0.0),
            forward_s=per_step.get("forward", 0.0),
            backward_s=per_step.get("backward", 0.0),
            optimizer_s=per_step.get("optimizer", 0.0),
            host_gap_s=per_step.get("rest", 0.0),
        )

    def diagnosis(self, folder: Path, *, on_gpu: bool) -> Diagnosis:
        """Returns what the parts cost alone, as far as it was reported.

        Args:
            folder: Where the script ran; its lines are named relative to it.
        """
        loader, halves = self.parts.get("loader"), self.parts.get("halves", {})
        return Diagnosis(
            device_samples_s=self._samples_per_second_of_one_batch(),
            loader_samples_s=loader["samples"] / loader["seconds"] if loader and loader["samples"] else None,
            half_step_s=halves.get("half"),
            full_step_s=halves.get("full"),
            blocked_s=None if on_gpu else self._blocked_s(),
            usable_cpus=usable_cpus(),
            lines=self._lines(folder),
            evaluation_share=self._evaluation_share(),
            outside=tuple(self.outside),
        )

    def _evaluation_share(self) -> float | None:
        wall = self.parts.get("as it is", {}).get("wall", {})
        total = sum(wall.values())
        return sum(wall.get(name, 0.0) for name in NOT_TRAINING) / total if total else None

    def _lines(self, folder: Path) -> dict[str, tuple[str, ...]]:
        """Returns the user's lines by phase, the most frequent first."""
        found = self.parts.get("lines", {}).get("lines", {})
        base = str(folder.resolve())
        return {
            phase: tuple(f"{path.removeprefix(base + os.sep)}:{line}" for path, line, _ in lines)
            for phase, lines in found.items()
            if lines
        }

    def _samples_per_second_of_one_batch(self) -> float | None:
        found = self.parts.get("one batch")
        if found is None or not found["samples"]:
            return None
        seconds = sum(s for name, s in found["wall"].items() if name not in ("data", *NOT_TRAINING))
        return float(found["samples"] / seconds)

    def _blocked_s(self) -> float | None:
        found = self.parts.get("as it is")
        if found is None or not found["steps"]:
            return None
        wall, cpu = found["wall"], found["cpu"]
        idle = sum(max(0.0, wall.get(name, 0.0) - cpu.get(name, 0.0)) for name in ARITHMETIC)
        return float(max(0.0, idle - found["waited"]) / found["steps"])
