"""Shows the status of a sweep to its observer."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence

from sweeper.core.job import Job
from sweeper.race.scores import Score
from sweeper.results.numbers.trial_table import TrialTable
from sweeper.sweep.budget import Budget
from sweeper.sweep.observer import Racer, Status
from sweeper.sweep.start.context import SweepContext

STATUS_SECONDS = 0.1
"""Minimum number of seconds between two statuses: with a thousand workers, trials start more often."""
MAX_NAMED = 8
"""Largest number of running trials that a status names."""


class SweepProgress:
    """The phase of a sweep and its progress, shown a few times per second."""

    def __init__(self, context: SweepContext, table: TrialTable, budget: Budget) -> None:
        self._context, self._table, self._budget = context, table, budget
        self._running: Callable[[], Mapping[int, Job]] = dict
        self._scores: Callable[[], Sequence[Score]] = tuple
        self._phase, self._done, self._total = "references", 0, 0
        self._shown_at = -math.inf

    def follow(self, running: Callable[[], Mapping[int, Job]]) -> None:
        """Shows the jobs that `running` returns, by key, from now on."""
        self._running = running

    def begin(self, phase: str, total: int = 0) -> None:
        """Begins a phase of `total` parts; 0 if unknown."""
        self._phase, self._done, self._total = phase, 0, total
        self._scores = tuple

    def follow_race(self, scores: Callable[[], Sequence[Score]]) -> None:
        """Shows how a race stands, as `scores` returns it, until the next phase begins."""
        self._scores = scores

    def advance_to(self, done: int) -> None:
        """Records how many parts of the phase are done."""
        self._done = done

    def tick(self) -> None:
        """Shows the sweep's status; called wherever it waits.

        Raises:
            StopAskedError: The user asked it to stop.
        """
        self._context.stopping.check()
        if self._budget.is_over:
            raise KeyboardInterrupt
        now = time.monotonic()
        if now - self._shown_at < STATUS_SECONDS:
            return
        self._shown_at = now
        best, running = self._table.best_trial(), self._running()
        names = [self._name(key, job) for key, job in itertools.islice(running.items(), MAX_NAMED)]
        others = [f"{len(running) - MAX_NAMED} others"] * (len(running) > MAX_NAMED)
        self._context.observer.status(
            Status(
                phase=self._phase,
                done=self._done,
                total=self._total,
                best=self._context.name(best) if best else "",
                best_ratio=self._table.speedup(best) if best else None,
                running=(*names, *others),
                seconds_left=self._budget.seconds_left,
                race=tuple(
                    Racer(self._context.name(self._table.records[score.arm]), score)
                    for score in self._scores()
                ),
            )
        )

    def _name(self, key: int, job: Job) -> str:
        record = self._table.records.get(job.params.get("arm", key))
        return self._context.name(record) if record else job.stage
