"""Compares the speeds of two versions in rounds: a new process of each, in alternating slices."""

from __future__ import annotations

import contextlib
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sweeper.analysis.intervals import interval
from sweeper.core.job import MeasurePlan
from sweeper.core.measurement import Measurement
from sweeper.core.progress import Silent, TrialFailedError
from sweeper.judging.alternating import Measure, Turns, alternated
from sweeper.judging.arms import Arm
from sweeper.script.watch import watch

Round = tuple[Measurement, Measurement]
"""Measurements of the first version and of the second in one round."""

PLAN = MeasurePlan(window_seconds=1.5, repeats=1, warmup_cap_seconds=5.0, cap_seconds=3.0, diagnose=False)
SLICE_SECONDS, MAX_SLICES = 0.6, 1000
FEW_SLICES, MANY_SLICES = 3, 20
"""Fewest and most slices of each version in a round."""
USUAL_VARIANCE, USUAL_ROUNDS = 0.03**2, 4
"""Usual variance of the log ratio of two equal processes, and the number of rounds for which it counts."""
START_SLICES = 6
"""Number of slices that take as long as the start of a process."""
LONG_SECONDS = 2 * SLICE_SECONDS
"""Seconds beyond which a slice is long: it has only a few steps, and each stop loses one."""
WARMUP_SECONDS = 2.0
"""Longest warm-up in a round, in seconds."""
MIN_ROUNDS = 4

LEVEL, EARLY_LEVEL = 0.97, 0.998
"""Confidence levels of the final interval, and of the one that may end the rounds early, which is checked
after each round. Together they call at most one in twenty pairs of equal versions different."""

EARLY_WIDTH, NARROW = math.log(1.05), math.log(1.01)
"""Half-widths of intervals that are narrow enough for a clear difference, and for any answer."""

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
            rounds, trimmed as in a confirmation.
        low: Lower end of its interval at `LEVEL`; `high` is the upper one.
        before: The measurements of the first version, round by round; `after` has those of the second.
    """

    answer: Speed
    ratio: float
    low: float
    high: float
    before: Sequence[Measurement]
    after: Sequence[Measurement]

    @classmethod
    def of(cls, logs: Sequence[float], rounds: Sequence[Round] = ()) -> Compared:
        """Returns the comparison that the logarithms of all rounds' ratios give."""
        mean, low, high = interval(logs, LEVEL)
        return cls(
            answer=answer(logs),
            ratio=math.exp(mean),
            low=math.exp(low),
            high=math.exp(high),
            before=[each for each, _ in rounds],
            after=[each for _, each in rounds],
        )

    @property
    def is_not_slower(self) -> bool:
        """Whether the interval excludes that the second version is over 3% slower, and it is not `SLOWER`."""
        return self.answer is not Speed.SLOWER and self.low >= math.exp(-SAME)


def measured(arm: Arm) -> Measurement:
    """Runs a version in a new process until it is measured.

    Raises:
        TrialFailedError: It cannot be measured, for a known reason.
        UserError: It cannot be started.
    """
    with _quiet():
        return _watched(arm, PLAN)


def one_round(arms: tuple[Arm, Arm], draw: random.Random, slices: int = FEW_SLICES) -> Round:
    """Measures a new process of each version, in alternating slices.

    Raises:
        TrialFailedError: A version cannot be measured, for a known reason.
        UserError: A version cannot be started.
    """
    plan = MeasurePlan(
        window_seconds=SLICE_SECONDS,
        repeats=MAX_SLICES,
        warmup_cap_seconds=WARMUP_SECONDS,
        cap_seconds=math.inf,
        diagnose=False,
    )
    order = [0, 1]
    draw.shuffle(order)
    measures: dict[int, Measure] = {index: _in_turns(arms[index], plan) for index in order}
    with _quiet():
        found = alternated(measures, order, slices, draw)
    return found[0], found[1]


def _in_turns(arm: Arm, plan: MeasurePlan) -> Measure:
    return lambda turns: _watched(arm, plan, turns)


def _watched(arm: Arm, plan: MeasurePlan, turns: Turns | None = None) -> Measurement:
    on_start = turns.started if turns is not None else lambda pid: None
    try:
        return watch(
            arm.command,
            arm.folder,
            Silent(),
            env=arm.env,
            plan=plan,
            cache=arm.cache,
            turn=turns,
            on_start=on_start,
        )
    except TrialFailedError as error:
        raise TrialFailedError(error.kind, f"{arm.name}: {error}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    # The script's output is not needed here.
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def compare(
    arms: tuple[Arm, Arm],
    deadline_s: float,
    say: Callable[[str], None],
    draw: random.Random,
    first: Round | None = None,
) -> Compared:
    """Runs rounds until the answer is clear, or the time is up.

    Args:
        deadline_s: The end by the monotonic clock, in seconds; at least `MIN_ROUNDS` run in any case.
        draw: Generator that decides the order of the versions.
        first: A round that has run already.
    """
    rounds: list[Round] = []

    def add(found: Round) -> None:
        rounds.append(found)
        say(f"  round {len(rounds)}: {math.exp(log_ratio(found)):.3g}x")

    if first is not None:
        add(first)
    longest = 0.0
    while True:
        began = time.monotonic()
        add(one_round(arms, draw, slices_of_next(rounds)))
        longest = max(longest, time.monotonic() - began)
        logs = [log_ratio(each) for each in rounds]
        is_last = time.monotonic() + longest > deadline_s
        if (is_last and len(rounds) >= MIN_ROUNDS) or is_clear(logs):
            return Compared.of(logs, rounds)


def slices_of_next(rounds: Sequence[Round]) -> int:
    """Returns how many slices make the best use of the next round: few if processes differ more than slices.

    The speed of a process depends on where its memory happens to be: by a tenth or more for some networks.
    """
    if rounds and any(_is_long(each) for each in rounds[-1]):
        return 1
    if len(rounds) < MIN_ROUNDS:
        return FEW_SLICES
    slices = [_log_ratios(each) for each in rounds]
    variances = [statistics.variance(each) for each in slices if len(each) > 1]
    if not variances:
        # The training is shorter than two slices.
        return FEW_SLICES
    within = statistics.fmean(variances)
    means = [statistics.fmean(each) for each in slices]
    found = statistics.variance(means) - within * statistics.fmean(1 / len(each) for each in slices)
    freedom = len(rounds) - 1
    between = (USUAL_ROUNDS * USUAL_VARIANCE + freedom * max(0.0, found)) / (USUAL_ROUNDS + freedom)
    return min(max(FEW_SLICES, round(math.sqrt(START_SLICES * within / between))), MANY_SLICES)


def _is_long(version: Measurement) -> bool:
    """Returns whether the steps of a version, or the intervals of its reports, are longer than slices."""
    return statistics.fmean(each.seconds for each in version.windows) > LONG_SECONDS


def log_ratio(found: Round) -> float:
    """Returns the mean logarithm of the ratios of a round's slices."""
    return statistics.fmean(_log_ratios(found))


def _log_ratios(found: Round) -> list[float]:
    """Returns the logarithms of the ratios of neighbouring slices; one version may lack a last slice."""
    speeds = [[each.samples / each.seconds for each in version.windows] for version in found]
    return [math.log(after / before) for before, after in zip(*speeds, strict=False)]


def is_clear(logs: Sequence[float]) -> bool:
    """Returns whether further rounds would hardly change the answer."""
    if len(logs) < MIN_ROUNDS:
        return False
    mean, low, high = interval(logs, EARLY_LEVEL)
    if mean - low <= NARROW:
        return True
    is_off = low > 0 or high < 0
    return is_off and mean - interval(logs, LEVEL)[1] <= EARLY_WIDTH


def answer(logs: Sequence[float]) -> Speed:
    """Returns the answer that the logarithms of all rounds' ratios give."""
    _, low, high = interval(logs, LEVEL)
    if low > 0:
        return Speed.FASTER
    if high < 0:
        return Speed.SLOWER
    return Speed.SAME if low >= -SAME and high <= SAME else Speed.UNDECIDED
