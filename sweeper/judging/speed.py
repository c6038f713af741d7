"""Compares the speeds of two versions: a race between them."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TextIO

from sweeper.core.job import MeasurePlan
from sweeper.core.measurement import FailureKind, Measurement
from sweeper.core.progress import TrialFailedError
from sweeper.judging.arms import Arm
from sweeper.judging.lives import CrowdedError, ScriptLives, measure_script
from sweeper.race import race
from sweeper.race.log import BASELINE, Event, Round, rounds_of
from sweeper.race.policy import Policy
from sweeper.race.tally import EARLY_LEVEL, LAST_LEVEL, Tally, log_ratios
from sweeper.results.formatting import interval, times

PLAN = MeasurePlan(window_seconds=1.5, repeats=1, warmup_cap_seconds=5.0, cap_seconds=3.0, diagnose=False)
OTHER = 1
"""The arm of the second version; that of the first is the baseline."""

BUSY_CORES = 0.3
"""Cores used by other programs above which a round counts as busy. A version of five processes may lose a
quarter to one busy neighbour, and a version of one process nothing, so that the ratio itself differs."""
FEWEST_OF_A_KIND = 2
"""Fewest quiet, or busy, rounds whose ratio is worth a line."""

SAME = math.log(1.03)
"""Largest log ratio of versions that are called the same: they are within 3% of each other."""


class Speed(StrEnum):
    """The answer of a comparison."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class PartialRatio:
    """A ratio over some of the rounds, with its 95% interval."""

    ratio: float
    low: float
    high: float
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedComparison:
    """Speeds of two versions.

    Attributes:
        ratio: Samples per second of the second version over those of the first: the geometric mean over
            rounds.
        low: Lower end of its 95% interval; `high` is the upper one.
        before: The measurements of the first version, round by round; `after` has those of the second.
        quiet: The ratio over the rounds in which other programs used less than 0.3 cores; None for fewer than
            two.
        busy: The ratio over the other rounds; None for fewer than two.
        is_stopped: Whether Ctrl-C ended the race.
    """

    answer: Speed
    ratio: float
    low: float
    high: float
    before: Sequence[Measurement] = ()
    after: Sequence[Measurement] = ()
    quiet: PartialRatio | None = None
    busy: PartialRatio | None = None
    is_stopped: bool = False

    @classmethod
    def of(
        cls,
        tally: Tally,
        before: Sequence[Measurement] = (),
        after: Sequence[Measurement] = (),
        *,
        quiet: PartialRatio | None = None,
        busy: PartialRatio | None = None,
        is_stopped: bool = False,
    ) -> SpeedComparison:
        """Returns the comparison that a tally gives."""
        low, high = tally.interval()
        return cls(
            # A person may press Ctrl-C at any look.
            answer=answer(tally, EARLY_LEVEL if is_stopped else LAST_LEVEL),
            ratio=math.exp(tally.mean),
            low=math.exp(low),
            high=math.exp(high),
            before=before,
            after=after,
            quiet=quiet,
            busy=busy,
            is_stopped=is_stopped,
        )

    @property
    def is_not_slower(self) -> bool:
        """Whether the interval excludes that the second version is over 3% slower, and it is not `SLOWER`."""
        return self.answer is not Speed.SLOWER and self.low >= math.exp(-SAME)


def answer(tally: Tally, level: float = LAST_LEVEL) -> Speed:
    """Returns the answer of a look at a race: by default, of the last one."""
    low, high = tally.interval(level)
    if low > 0:
        return Speed.FASTER
    if high < 0:
        return Speed.SLOWER
    return Speed.SAME if low >= -SAME and high <= SAME else Speed.UNDECIDED


def measure_version(arm: Arm) -> Measurement:
    """Runs a version in a new process until it is measured.

    Raises:
        TrialFailedError: It cannot be measured, for a known reason.
        UserError: It cannot be started.
    """
    with _without_output():
        return measure_script(arm, PLAN)


def compare(
    arms: tuple[Arm, Arm],
    seconds: float,
    say: Callable[[str], None],
    on_first: Callable[[Measurement, Measurement], None] = lambda before, after: None,
) -> SpeedComparison:
    """Races two versions until the answer is clear, or the time is up.

    Args:
        seconds: The limit. One round takes place in any case.
        on_first: Called with the measurements of the first round; its time counts.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed before the end of the first round. After it, the comparison has
            the rounds that there are.
        TrialFailedError: A version cannot be measured, for a known reason.
        UserError: A version cannot be started.
    """
    began, num_first = time.monotonic(), 0

    def call_first(*measured: Measurement) -> None:
        nonlocal num_first
        num_first += 1
        on_first(*measured)

    try:
        return _race(arms, seconds, say, call_first)
    except CrowdedError:
        if num_first:
            raise
    say("  the versions cannot run side by side, so they run one after the other")
    return _race(arms, seconds - (time.monotonic() - began), say, on_first, is_alone=True)


def _race(
    arms: tuple[Arm, Arm],
    seconds: float,
    say: Callable[[str], None],
    on_first: Callable[[Measurement, Measurement], None],
    *,
    is_alone: bool = False,
) -> SpeedComparison:
    log: list[Event] = []
    is_stopped = False
    with _without_output() as stdout, ScriptLives.of(arms, is_alone=is_alone) as lives:

        def report() -> None:
            rounds = _complete_rounds(log)
            with contextlib.redirect_stdout(stdout):
                if len(rounds) == 1:
                    on_first(*(_measurements_of(lives, rounds, arm)[0] for arm in (BASELINE, OTHER)))
                say(f"  {_progress_line(rounds)}")

        try:
            race.run(Policy(arms=(BASELINE, OTHER), seconds=seconds), lives, log, report)
        except KeyboardInterrupt:
            is_stopped = True
        rounds = _complete_rounds(log)
        rounds = [one for one in rounds if log_ratios(one, OTHER)]
        before, after = (_measurements_of(lives, rounds, arm) for arm in (BASELINE, OTHER))
    tally = Tally.of(rounds, OTHER)
    if is_stopped and not tally.logs:
        raise KeyboardInterrupt
    if not tally.logs:
        raise TrialFailedError(FailureKind.NO_RESULT, "the two versions have no turns to compare")
    return SpeedComparison.of(
        tally,
        before,
        after,
        quiet=_partial_ratio([one for one in rounds if not _is_busy(one)]),
        busy=_partial_ratio([one for one in rounds if _is_busy(one)]),
        is_stopped=is_stopped,
    )


def _complete_rounds(log: Sequence[Event]) -> list[Round]:
    return [one for one in rounds_of(log) if one.is_over((BASELINE, OTHER))]


def _progress_line(rounds: Sequence[Round]) -> str:
    """Returns the latest ratio, and that of all rounds with its interval."""
    latest, tally = Tally.of(rounds[-1:], OTHER), Tally.of(rounds, OTHER)
    if not latest.logs:
        return f"start {len(rounds)}: the two versions have no turns to compare"
    low, high = tally.interval()
    so_far = f"{times(math.exp(tally.mean))} {interval(math.exp(low), math.exp(high))}"
    prefix = "" if len(rounds) == 1 else f"{times(math.exp(latest.mean))}, so far "
    return f"start {len(rounds)}: {prefix}{so_far}"


def _is_busy(round_: Round) -> bool:
    """Returns whether other programs used the processor during a round."""
    return statistics.fmean(life.foreign for life in round_.lives.values()) > BUSY_CORES


def _partial_ratio(rounds: Sequence[Round]) -> PartialRatio | None:
    tally = Tally.of(rounds, OTHER)
    if len(tally.logs) < FEWEST_OF_A_KIND:
        return None
    low, high = tally.interval()
    return PartialRatio(math.exp(tally.mean), math.exp(low), math.exp(high), len(tally.logs))


def _measurements_of(lives: ScriptLives, rounds: Sequence[Round], arm: int) -> list[Measurement]:
    return [lives.measured[round_.lives[arm].number] for round_ in rounds]


@contextlib.contextmanager
def _without_output() -> Iterator[TextIO]:
    """Drops the scripts' output; yields the stream for other lines."""
    before = sys.stdout
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield before
