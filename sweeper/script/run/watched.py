"""Combines the reports of the hook in a script's processes (`sweeper.script.inside`) into one timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeper.script.run.taken_apart import StepAnalysis
from sweeper.script.run.timeline import Timeline

PATIENCE_STEPS = 50
"""Number of steps without known samples after which the steps themselves are counted."""


@dataclass(slots=True)
class _Totals:
    """Totals of one training process."""

    steps: int = 0
    samples: float = 0.0
    paused: float = 0.0


class WatchedTraining:
    """Training as torch reports it.

    Processes that train in parallel without torch.distributed (hogwild) add up; in a distributed
    training, the first rank reports for all.

    Attributes:
        timeline: Timeline of the training by steps and samples.
        programs: Versions of Python and torch, by process that imported torch.
        failures: Reasons why processes are no longer watched.
        facts: What the training uses (`sweeper.script.changes.facts`).
        source: Description of what is counted as steps and samples.
        is_pausing: Whether an evaluation is in progress.
        parts: The parts of its steps, once they are taken apart.
        changes: For each change at run time that was reported, why it is not in effect; empty if it is.
        num_recorded: Number of steps in its record; None while that is not complete.
        shares: Number of steps that were timed in parts, their seconds, and those of data and optimizer.
        between: What was done between its steps (`sweeper.script.inside.between_steps`).
        resting: Ids of the processes that rest, or have rested since it was cleared.
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
        self.parts = StepAnalysis()
        self.changes: dict[str, str] = {}
        self._given_up: set[str] = set()
        self.num_recorded: int | None = None
        self.shares: Sequence[float] = ()
        self.between: Mapping[str, float] = {}
        self.resting: set[int] = set()

    @property
    def doubt(self) -> str:
        """Why nothing may have been reported, to be added to a sentence; empty if torch was seen."""
        if self.programs:
            return ""
        return ": torch was not seen in its processes. One that sets PYTHONPATH hides sweeper's hook"

    @property
    def trainers(self) -> Sequence[int]:
        """Ids of the processes that train."""
        return list(self._processes)

    @property
    def steps(self) -> int:
        """Number of steps so far, over all processes."""
        return sum(process.steps for process in self._processes.values())

    @property
    def knows_samples(self) -> bool:
        """Whether the number of samples per step is known."""
        return self._per_step > 0 or any(process.samples for process in self._processes.values())

    @property
    def versions(self) -> Mapping[str, str]:
        """The version of torch; empty before its first message."""
        first = next(iter(self.programs.values()), None)
        return {} if first is None else {"torch": first["torch"]}

    @property
    def by(self) -> str:
        """The source of the timeline, in words."""
        return f"torch ({self.source})"

    def add(self, message: Mapping[str, Any]) -> None:
        """Adds a message.

        Raises:
            TrialFailedError: A loss is not a number.
        """
        if "hello" in message:
            self.programs[message["pid"]] = message["hello"]
        if "failed" in message:
            self.failures.append(message["failed"])
        for deed in message.get("outside", ()):
            self.parts.outside.setdefault(deed)
        if "change" in message:
            self._add_change(message["change"])
        self.num_recorded = message.get("recorded", self.num_recorded)
        if "resting" in message:
            self.resting.add(message["pid"])
        if "part" in message:
            self.parts.add(message)
        elif "steps" in message:
            self._count(message)

    def _add_change(self, change: Mapping[str, Any]) -> None:
        # A change that is in effect for one of the script's loaders counts as in effect.
        name = change["name"]
        if change.get("given_up"):
            self._given_up.add(name)
            self.changes[name] = f"turned off during the training: {change['why']}"
        elif change["applied"] and name not in self._given_up:
            self.changes[name] = ""
        else:
            self.changes.setdefault(name, change["why"] or "it is not possible here")

    def _count(self, message: Mapping[str, Any]) -> None:
        self.source = message.get("source", self.source)
        self.facts = message.get("facts", self.facts)
        if self.facts and "saved_at" in message:
            places = {**self.facts.get("places", {}), "checkpoint": message["saved_at"]}
            self.facts = {**self.facts, "places": places}
        self.between = message.get("between", self.between)
        self.shares = message.get("shares", self.shares)
        self.is_pausing = message["pausing"]
        self._processes[message["pid"]] = _Totals(message["steps"], message["samples"], message["paused"])
        processes = self._processes.values()
        steps, samples = (
            sum(process.steps for process in processes),
            sum(process.samples for process in processes),
        )
        if not samples:
            if steps < PATIENCE_STEPS:
                return
            samples = steps * (self._per_step or 1.0)
        if "resumed" in message:
            self.timeline.resume(message["resumed"])
        # Processes that train in parallel also evaluate in parallel.
        paused = max(process.paused for process in processes)
        self.timeline.count(message["t"], samples, steps, paused)
        if "stage" in message and len(self._processes) == 1:
            self.timeline.enter_stage(*message["stage"])
        if "loss" in message:
            self.timeline.add_loss("loss", message["loss"], samples)
