"""What the trials of a sweep come to, kept up as each one is entered: nothing is looked up in all of them."""

from __future__ import annotations

from bisect import insort

from sweeper.core.measurement import FailureKind
from sweeper.core.record import TrialRecord
from sweeper.spec import SweepSpec

WORST = 2
"""A trial is told the worst of the others: of two, one is another."""


def is_passed_over(record: TrialRecord) -> bool:
    """Returns whether a configuration was never run, because of what was expected of it."""
    return record.failure is not None and record.failure.kind is FailureKind.OOM_EXPECTED


class Standing:
    """The best and the worst of the trials that have ended.

    Attributes:
        quiet_canary_ms: The shortest canary beside any window so far; 0 where there is none.
        measured: How many searched trials gave a measurement.
    """

    def __init__(self, spec: SweepSpec, *, needs_loss: bool) -> None:
        """Nothing has ended yet.

        Args:
            needs_loss: Whether the best is one whose loss was looked at.
        """
        self._spec, self._needs_loss = spec, needs_loss
        self._best: dict[str, tuple[float, int]] = {}
        self._worst: dict[tuple[str, bool], list[tuple[float, int]]] = {}
        self.quiet_canary_ms = 0.0
        self.measured = 0

    def add(self, record: TrialRecord) -> None:
        """Takes in a trial that has ended."""
        found = record.measurement
        if found is None:
            return
        self.measured += record.stage == "search"
        canaries = [window.canary_ms for window in found.windows] + [self.quiet_canary_ms]
        self.quiet_canary_ms = min((ms for ms in canaries if ms), default=0.0)
        for objective in self._spec.objectives:
            value = record.metric(objective.metric)
            if value is None:
                continue
            low = value if objective.direction == "maximize" else -value
            for kind in {False, record.feasible}:
                worst = self._worst.setdefault((objective.metric, kind), [])
                insort(worst, (low, record.number))
                del worst[WORST:]
        if record.feasible and (record.quality or not self._needs_loss):
            # Of equal ones the first.
            rank = record.metric("throughput") or 0.0, -record.number
            key = record.config.work_key()
            self._best[key] = max(self._best.get(key, rank), rank)

    def best(self, work_key: str) -> int | None:
        """Returns the number of the fastest feasible trial of a work; None where there is none."""
        found = self._best.get(work_key)
        return -found[1] if found else None

    def worst(self) -> set[int]:
        """Returns the numbers of the trials that are worst by an objective: of the feasible, and of all."""
        return {number for each in self._worst.values() for _, number in each}
