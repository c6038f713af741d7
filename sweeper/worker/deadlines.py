"""Decides when a job is overdue: as a whole, in a stage, or because it takes no more steps."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from sweeper.core.measurement import FailureKind
from sweeper.core.progress import STEPPING, TRAINING_STAGE

STALL_RATIO = 20.0
"""A job counts as stalled only after this many median step times without a step."""
LOOK_SECONDS = 1.0
"""Seconds between two checks of the step counter."""
MAX_SECONDS = 3600.0
"""Maximum seconds between two checks, since poll() takes a bounded timeout."""
LATE_SECONDS = 5.0
"""A check that is later than this means that the machine or the keeper was suspended."""
_INTERVALS = 101


@dataclass(frozen=True, slots=True)
class KillReason:
    """The reason why a job is killed: kind and message of its Failure."""

    kind: FailureKind
    message: str


class OverdueWatch:
    """Tracks a job's progress and reports when it is overdue. All moments are monotonic seconds.

    Time during which the machine or the keeper was suspended does not count against the job.

    Args:
        timeout_seconds: Limit for the whole job.
        stage_seconds: Limits for stages, all parts of a stage added up.
        stall_seconds: Limit on the time without a step, once the stage has taken one; 0 for no
            limit. In the window stage, a step of the warm-up is enough. In a production run, which
            has no total limit, the limit applies from the beginning.
        now: Start of the job.
    """

    def __init__(
        self, timeout_seconds: float, stage_seconds: Mapping[str, float], stall_seconds: float, now: float
    ) -> None:
        self._timeout, self._limits, self._stall = timeout_seconds, stage_seconds, stall_seconds
        self._began = self._stage_began = self._looked = self._stepped = now
        self._wait_seconds = 0.0
        self._stage = "start"
        self._spent: dict[str, float] = {}
        self._count = self._first_count = 0
        self._step_seconds: deque[float] = deque(maxlen=_INTERVALS)

    def stage(self, name: str, now: float, count: int) -> None:
        """Records that the job reached a stage after `count` steps; forgets earlier step times.

        The window stage continues the warm-up: step times are kept, and the first step is due, too.
        """
        self._spent[self._stage] = self._spent.get(self._stage, 0.0) + now - self._stage_began
        self._stage, self._stage_began = name, now
        self._count = count
        if name != "window":
            self._first_count = count
            self._step_seconds.clear()
        self.note_life(now)

    def note_life(self, now: float) -> None:
        """Records a sign of life."""
        self._stepped = now

    def look(self, now: float, count: int, is_paused: bool) -> KillReason | None:
        """Returns why the job is overdue, or None.

        Args:
            count: Steps so far.
            is_paused: Whether the job is deliberately taking no steps.
        """
        self._leave_out(now)
        self._looked = now
        if count != self._count:
            self._step_seconds.append((now - self._stepped) / (count - self._count))
            self._count, self._stepped = count, now
        elif is_paused:
            self._stepped = now
        if now - self._began >= self._timeout:
            return KillReason(
                FailureKind.TIMEOUT, f"no result within {self._timeout:g} s (in stage `{self._stage}`)"
            )
        limit = self._limits.get(self._stage)
        if limit is not None and self._in_stage(now) >= limit:
            return KillReason(
                FailureKind.TIMEOUT, f"stage `{self._stage}` took longer than its limit of {limit:g} s"
            )
        silent = now - self._stepped
        # The median comes last: this runs for every piece of output.
        if self._looks_for_steps and silent >= self._stall and silent >= STALL_RATIO * self._usual_seconds:
            return KillReason(
                FailureKind.STALLED,
                f"no step for {silent:.3g} s after {self._count:,} steps (in stage `{self._stage}`)",
            )
        return None

    def seconds_to_look(self, now: float) -> float:
        """Returns the seconds until the next check."""
        left = [MAX_SECONDS, self._timeout - (now - self._began)]
        if (limit := self._limits.get(self._stage)) is not None:
            left.append(limit - self._in_stage(now))
        if self._stall and self._stage in STEPPING:
            left.append(min(LOOK_SECONDS, self._stall))
        self._wait_seconds = max(0.0, min(left))
        return self._wait_seconds

    def _leave_out(self, now: float) -> None:
        late = now - self._looked - self._wait_seconds
        if late > LATE_SECONDS:
            self._began += late
            self._stage_began += late
            self._stepped = now

    @property
    def _looks_for_steps(self) -> bool:
        awaited = self._count > self._first_count or self._stage == TRAINING_STAGE
        return bool(self._stall) and self._stage in STEPPING and awaited

    @property
    def _usual_seconds(self) -> float:
        return statistics.median(self._step_seconds) if self._step_seconds else 0.0

    def _in_stage(self, now: float) -> float:
        return self._spent.get(self._stage, 0.0) + now - self._stage_began
