"""Ratios of speeds within a round, and their intervals over processes.

    log ratio = truth + process + turn

Two processes of one script differ by a few percent, for as long as they live: many turns of two processes
say how fast these two are, and not how fast the next two will be. So the unit is the process, and a round
has a new one of each arm. On 168 rounds of ten scripts against themselves, their log ratios had a standard
deviation of 2 to 5% (and of 14% for a loader of pictures).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sweeper.race.log import BASELINE, Life, Round
from sweeper.race.quantiles import t_quantile

USUAL_VARIANCE, USUAL_FREEDOM = 0.03**2, 4
"""Usual variance of the log ratio of one process of each of two equal arms, and its degrees of freedom."""
SEQUENTIAL_VARIANCE, SINGLE_VARIANCE, MANY = 0.05**2, 0.09**2, 3
"""The same of processes that follow each other, since the host's speed changes meanwhile: of `MANY` or more,
and of fewer, among which none may show that other load occasionally slows one by a third. On a shared host,
recorded log ratios had standard deviations of 7 to 19%."""

LEVEL = 0.95
"""Confidence level of what is printed, and of whatever names no other level."""
LAST_LEVEL, EARLY_LEVEL = 0.97, 0.998
"""Confidence levels of the last look, and of each earlier one, which may end the race. With 95% at each of
12 looks, one in four pairs of equal arms would be called different."""

ROBUST_ROUNDS, TRIM = 8, 0.2
"""Number of rounds from which means are trimmed, and the share that is trimmed at either end, so that one
disturbed round cannot decide (Yuen 1974, 10.1093/biomet/61.1.165)."""


@dataclass(frozen=True, slots=True)
class Variance:
    """An estimated variance.

    Attributes:
        freedom: Its degrees of freedom.
    """

    value: float
    freedom: float

    def half_width(self, level: float = LEVEL) -> float:
        """Returns half the width of the interval around a mean with this variance (t distribution)."""
        return t_quantile(0.5 + level / 2, self.freedom) * math.sqrt(self.value)


def variance(values: Sequence[float]) -> float:
    """Returns the variance of at least two values; many times faster than the exact one of `statistics`."""
    mean = statistics.fmean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def log_ratios(one: Round, arm: int, to: int = BASELINE) -> list[float]:
    """Returns the logs of an arm's speed over another's, turn by turn.

    Processes that take turns are compared in the laps in which both have taken one.
    """
    if not {arm, to} <= one.lives.keys():
        return []
    speeds, other = (_speeds(one.lives[number], in_laps=bool(one.is_in_company)) for number in (arm, to))
    return [math.log(speeds[lap] / other[lap]) for lap in speeds if lap in other]


def _speeds(life: Life, *, in_laps: bool) -> dict[int, float]:
    """Returns a process's samples per second by lap, or by turn."""
    laps = life.laps if in_laps else range(len(life.turns))
    return {lap: turn.samples / turn.seconds for lap, turn in zip(laps, life.turns, strict=True)}


def trimmed_mean(logs: Sequence[float]) -> float:
    """Returns the mean, trimmed from `ROBUST_ROUNDS` on."""
    cut = _num_trimmed(logs)
    return statistics.fmean(sorted(logs)[cut : len(logs) - cut])


def trimmed_variance(logs: Sequence[float]) -> tuple[float, int]:
    """Returns the variance of at least two logs, and its degrees of freedom.

    Divided by their number, it is the variance of `trimmed_mean`.
    """
    count, cut = len(logs), _num_trimmed(logs)
    kept, order = count - 2 * cut, sorted(logs)
    drawn_in = [min(max(log, order[cut]), order[count - cut - 1]) for log in logs]
    scale = count * (count - 1) / (kept * (kept - 1))
    return scale * statistics.variance(drawn_in), kept - 1


def _num_trimmed(logs: Sequence[float]) -> int:
    """Returns how many logs are trimmed at either end."""
    return int(TRIM * len(logs)) if len(logs) >= ROBUST_ROUNDS else 0


@dataclass(frozen=True, slots=True)
class Tally:
    """The log ratios of an arm to another one, round by round.

    Attributes:
        logs: Mean log ratio of each round's turns.
        turn_variances: Variance of each of these means that is due to its turns; unknown for a single turn.
        is_in_turns: Whether processes took turns, and saw the same changes of the host's speed.
    """

    logs: Sequence[float]
    turn_variances: Sequence[float] = field(default=())
    is_in_turns: bool = True

    @classmethod
    def of(cls, rounds: Sequence[Round], arm: int, to: int = BASELINE) -> Tally:
        """Returns the tally of the rounds in which both have taken a turn."""
        turns = {id(one): logs for one in rounds if (logs := log_ratios(one, arm, to))}
        return cls(
            [statistics.fmean(logs) for logs in turns.values()],
            [variance(logs) / len(logs) for logs in turns.values() if len(logs) > 1],
            is_in_turns=all(one.is_in_company for one in rounds if id(one) in turns),
        )

    @property
    def carries_interval(self) -> bool:
        """Whether it shows how much turns differ: a single turn of each does not."""
        return bool(self.turn_variances) or len(self.logs) > 1 or (bool(self.logs) and not self.is_in_turns)

    @property
    def mean(self) -> float:
        """The mean log ratio, trimmed from `ROBUST_ROUNDS` on; minus infinity without a round."""
        return trimmed_mean(self.logs) if self.logs else -math.inf

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Returns the ends of the interval of the log ratio, which holds for other processes in this hour."""
        half = self.half_width(level)
        return (self.mean - half, self.mean + half) if self.logs else (-math.inf, math.inf)

    def half_width(self, level: float = LEVEL) -> float:
        """Returns half the width of the interval; infinite without a round."""
        if not self.logs:
            return math.inf
        return self.mean_variance.half_width(level)

    @property
    def mean_variance(self) -> Variance:
        """The variance of the mean; there must be a round."""
        of_a_round = self.round_variance
        return Variance(of_a_round.value / len(self.logs), of_a_round.freedom)

    @property
    def round_variance(self) -> Variance:
        """The variance of a round's log ratio; there must be a round.

        A few rounds that agree by chance do not make it smaller than usual, and rounds that differ by more
        than usual speak for themselves.
        """
        count = len(self.logs)
        default = USUAL_VARIANCE
        if not self.is_in_turns:
            default = SEQUENTIAL_VARIANCE if count >= MANY else SINGLE_VARIANCE
        default += statistics.fmean(self.turn_variances) if self.turn_variances else 0.0
        if count == 1:
            return Variance(default, USUAL_FREEDOM)
        sample_variance, own_freedom = trimmed_variance(self.logs)
        freedom = USUAL_FREEDOM + own_freedom
        pooled = (USUAL_FREEDOM * default + own_freedom * sample_variance) / freedom
        if count > USUAL_FREEDOM and sample_variance > pooled:
            # They speak for themselves.
            return Variance(sample_variance, own_freedom)
        return Variance(max(sample_variance, pooled, default if count <= USUAL_FREEDOM else 0.0), freedom)

    def single_half_width(self, level: float = LEVEL) -> float:
        """Returns how far the log ratio of one later process of each may be from the mean of later rounds.

        That mean is of as many rounds as these. Infinite without one.
        """
        count = len(self.logs)
        if not count:
            return math.inf
        # It may be disturbed, like any round, so nothing is trimmed.
        of_a_round = self.round_variance
        untrimmed = max(of_a_round.value, variance(self.logs) if count > 1 else 0.0)
        return Variance((1 - 1 / count) * untrimmed, of_a_round.freedom).half_width(level)


def contenders(rounds: Sequence[Round], arms: Iterable[int], level: float = EARLY_LEVEL) -> list[int]:
    """Returns the arms that may still be the fastest, the fastest so far first.

    Args:
        arms: The arms to consider, without the baseline.
        level: Confidence level at which the others are slower than the fastest.
    """
    tallies = {arm: Tally.of(rounds, arm) for arm in arms}
    order = sorted((arm for arm in tallies if tallies[arm].logs), key=lambda arm: -tallies[arm].mean)
    if not order:
        return []
    best = order[0]
    for other in order[1:]:
        # Means over different rounds may rank arms differently than means over common rounds.
        if Tally.of(rounds, other, best).mean > 0:
            best = other
    rest = [arm for arm in order if arm != best]
    return [best, *(arm for arm in rest if Tally.of(rounds, arm, best).interval(level)[1] >= 0)]


def interval_of(logs: Sequence[float], level: float = LEVEL) -> tuple[float, float, float]:
    """Returns mean, low and high of the t interval (95%); infinite for fewer than two values.

    From `ROBUST_ROUNDS` on, they are trimmed (Yuen 1974, 10.1093/biomet/61.1.165).
    """
    mean, count = trimmed_mean(logs), len(logs)
    if count < 2:
        return mean, -math.inf, math.inf
    of_one, freedom = trimmed_variance(logs)
    half = Variance(of_one / count, freedom).half_width(level)
    return mean, mean - half, mean + half
