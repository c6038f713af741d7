"""Puts the reports of the hook in a script's processes (`sweeper.inject`) together to one timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeper.script.taken_apart import TakenApart
from sweeper.script.timeline import Timeline

PATIENCE_STEPS = 50
"""Steps without a known number of samples after which they are counted as steps."""


@dataclass(slots=True)
class _Totals:
    """Totals of one training process."""

    steps: int = 0
    samples: float = 0.0
    paused: float = 0.0


class Watched:
    """Training that torch reports.

    Processes that train side by side without torch.distributed (hogwild) add up; of a distributed
    training, the first rank reports for all.

    Attributes:
        timeline: Training by steps and samples.
        programs: Versions of Python and torch by process, of all that imported torch.
        failures: Why processes are not watched any more.
        facts: What the training turned out to use (`sweeper.inject.facts`).
        source: What is counted as steps and samples, in words.
        is_pausing: Whether an evaluation is in progress.
        parts: The parts of its steps, in a run that takes them apart.
        changes: For each change at run time that is known to be in effect or not: why it is not.
        has_proved: Whether the record of a proof is complete.
    """

    def __init__(self, per_step: float) -> None:
        self._per_step = per_step
        self._processes: dict[int, _Totals] = {}
        self.timeline = Timeline()
        self.programs: dict[int, Mapping[str, str]] = {}
        self.failures: list[str] = []
        self.facts: Mapping[str, Any] = {}
        self.source = ""
        self.is_pausing = False
        self.parts = TakenApart()
        self.changes: dict[str, str] = {}
        self.has_proved = False

    @property
    def trainers(self) -> Sequence[int]:
        """The processes that train."""
        return list(self._processes)

    @property
    def steps(self) -> int:
        """The steps so far."""
        return sum(each.steps for each in self._processes.values())

    @property
    def knows_samples(self) -> bool:
        """Whether the samples of its steps are known."""
        return self._per_step > 0 or any(each.samples for each in self._processes.values())

    @property
    def by(self) -> str:
        """The source of the timeline, in words."""
        return f"torch ({self.source})"

    def take(self, message: Mapping[str, Any]) -> None:
        """Adds a message.

        Raises:
            TrialFailedError: A loss is not a number.
        """
        if "hello" in message:
            self.programs[message["pid"]] = message["hello"]
        if "failed" in message:
            self.failures.append(message["failed"])
        for each in message.get("outside", ()):
            self.parts.outside.setdefault(each)
        if "change" in message:
            self._take_change(message["change"])
        self.has_proved = self.has_proved or "proved" in message
        if "part" in message:
            self.parts.take(message)
        elif "steps" in message:
            self._count(message)

    def _take_change(self, change: Mapping[str, Any]) -> None:
        # In effect for one of the script's loaders is in effect.
        name = change["name"]
        if change["applied"]:
            self.changes[name] = ""
        else:
            self.changes.setdefault(name, change["why"] or "it is not possible here")

    def _count(self, message: Mapping[str, Any]) -> None:
        self.source = message.get("source", self.source)
        self.facts = message.get("facts", self.facts)
        self.is_pausing = message["pausing"]
        self._processes[message["pid"]] = _Totals(message["steps"], message["samples"], message["paused"])
        every = self._processes.values()
        steps, samples = sum(each.steps for each in every), sum(each.samples for each in every)
        if not samples:
            if steps < PATIENCE_STEPS:
                return
            samples = steps * (self._per_step or 1.0)
        # Those that train side by side evaluate side by side.
        paused = max(each.paused for each in every)
        self.timeline.count(message["t"], samples, steps, paused)
        if "loss" in message:
            self.timeline.add_loss("loss", message["loss"], samples)
