"""Compares the speeds of two versions: a race between them."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TextIO

from sweeper.core.job import MeasurePlan
from sweeper.core.measurement import FailureKind, Measurement
from sweeper.core.progress import TrialFailedError
from sweeper.judging.arms import Arm
from sweeper.judging.lives import ScriptLives, watched
from sweeper.race import race
from sweeper.race.log import BASELINE, Event, Round, is_over, rounds_of
from sweeper.race.policy import Policy
from sweeper.race.tally import LAST_LEVEL, Tally

PLAN = MeasurePlan(window_seconds=1.5, repeats=1, warmup_cap_seconds=5.0, cap_seconds=3.0, diagnose=False)
OTHER = 1
"""The arm of the second version; that of the first is the baseline."""

SAME = math.log(1.03)
"""Largest log ratio of versions that are called the same: they are within 3% of each other."""


class Speed(StrEnum):
    """The answer of a comparison."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Speeds of two versions.

    Attributes:
        ratio: Samples per second of the second version over those of the first: the geometric mean over
            rounds.
        low: Lower end of its 95% interval; `high` is the upper one.
        before: The measurements of the first version, round by round; `after` has those of the second.
    """

    answer: Speed
    ratio: float
    low: float
    high: float
    before: Sequence[Measurement] = ()
    after: Sequence[Measurement] = ()

    @classmethod
    def of(
        cls, tally: Tally, before: Sequence[Measurement] = (), after: Sequence[Measurement] = ()
    ) -> Compared:
        """Returns the comparison that a tally gives."""
        low, high = tally.interval()
        return cls(
            answer=answer(tally),
            ratio=math.exp(tally.mean),
            low=math.exp(low),
            high=math.exp(high),
            before=before,
            after=after,
        )

    @property
    def is_not_slower(self) -> bool:
        """Whether the interval excludes that the second version is over 3% slower, and it is not `SLOWER`."""
        return self.answer is not Speed.SLOWER and self.low >= math.exp(-SAME)


def answer(tally: Tally) -> Speed:
    """Returns the answer of the last look at a race."""
    low, high = tally.interval(LAST_LEVEL)
    if low > 0:
        return Speed.FASTER
    if high < 0:
        return Speed.SLOWER
    return Speed.SAME if low >= -SAME and high <= SAME else Speed.UNDECIDED


def measured(arm: Arm) -> Measurement:
    """Runs a version in a new process until it is measured.

    Raises:
        TrialFailedError: It cannot be measured, for a known reason.
        UserError: It cannot be started.
    """
    with _quiet():
        return watched(arm, PLAN)


def compare(
    arms: tuple[Arm, Arm],
    seconds: float,
    say: Callable[[str], None],
    on_first: Callable[[Measurement, Measurement], None] = lambda before, after: None,
) -> Compared:
    """Races two versions until the answer is clear, or the time is up.

    Args:
        seconds: The limit. One round takes place in any case.
        on_first: Called with the measurements of the first round; its time counts.

    Raises:
        TrialFailedError: A version cannot be measured, for a known reason.
        UserError: A version cannot be started.
    """
    policy = Policy(arms=len(arms), seconds=seconds)
    with _quiet() as stdout, ScriptLives.of(arms) as lives:

        def seen(log: Sequence[Event]) -> None:
            rounds = rounds_of(log)
            with contextlib.redirect_stdout(stdout):
                if len(rounds) == 1:
                    on_first(*(_measured(lives, rounds, arm)[0] for arm in (BASELINE, OTHER)))
                tally = Tally.of(rounds[-1:], OTHER)
                if tally.logs:
                    say(f"  start {len(rounds)}: {math.exp(tally.mean):.3g}x")

        rounds = [each for each in rounds_of(race.run(policy, lives, seen)) if is_over(each, len(arms))]
        before, after = (_measured(lives, rounds, arm) for arm in (BASELINE, OTHER))
    tally = Tally.of(rounds, OTHER)
    if not tally.logs:
        raise TrialFailedError(FailureKind.NO_RESULT, "the two versions have no turn in common")
    return Compared.of(tally, before, after)


def _measured(lives: ScriptLives, rounds: Sequence[Round], arm: int) -> list[Measurement]:
    return [lives.measured[each.lives[arm].number] for each in rounds]


@contextlib.contextmanager
def _quiet() -> Iterator[TextIO]:
    """Drops the scripts' output; yields the stream for other lines."""
    before = sys.stdout
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield before
