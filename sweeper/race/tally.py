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
from collections.abc import Sequence
from dataclasses import dataclass, field

from sweeper.race.log import BASELINE, Round
from sweeper.race.quantiles import t_quantile

USUAL_VARIANCE, USUAL_FREEDOM = 0.03**2, 4
"""Usual variance of the log ratio of one process of each of two equal arms, and its degrees of freedom."""

LEVEL = 0.95
"""Confidence level of what is printed."""
LAST_LEVEL, EARLY_LEVEL = 0.97, 0.998
"""Confidence levels of the last look, and of each earlier one, which may end the race. With 95% at each of
12 looks, one in four pairs of equal arms would be called different."""

ROBUST_ROUNDS, TRIM = 8, 0.2
"""Number of rounds from which means are trimmed, and the share that is trimmed at either end, so that one
disturbed round cannot decide (Yuen 1974, 10.1093/biomet/61.1.165)."""


def variance(values: Sequence[float]) -> float:
    """Returns the variance of at least two values; many times faster than the exact one of `statistics`."""
    mean = statistics.fmean(values)
    return math.fsum((each - mean) ** 2 for each in values) / (len(values) - 1)


def log_ratios(found: Round, arm: int) -> list[float]:
    """Returns the logs of an arm's speed over the baseline's, turn by turn; one may lack a last turn."""
    speeds = [
        [each.samples / each.seconds for each in found.lives[number].turns] for number in (BASELINE, arm)
    ]
    return [math.log(other / own) for own, other in zip(*speeds, strict=False)]


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
    """The log ratios of an arm to the baseline, round by round.

    Attributes:
        logs: Mean log ratio of each round's turns.
        turn_variances: Variance of each of these means that is due to its turns; unknown for a single turn.
    """

    logs: Sequence[float]
    turn_variances: Sequence[float] = field(default=())

    @classmethod
    def of(cls, rounds: Sequence[Round], arm: int) -> Tally:
        """Returns the tally of the rounds in which both have taken a turn."""
        turns = [logs for each in rounds if (logs := log_ratios(each, arm))]
        return cls(
            [statistics.fmean(logs) for logs in turns],
            [variance(logs) / len(logs) for logs in turns if len(logs) > 1],
        )

    @property
    def mean(self) -> float:
        """The mean log ratio, trimmed from `ROBUST_ROUNDS` on."""
        return trimmed_mean(self.logs)

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Returns the ends of the interval of the log ratio, which holds for other processes in this hour."""
        half = self.half_width(level)
        return self.mean - half, self.mean + half

    def half_width(self, level: float = LEVEL) -> float:
        """Returns half the width of the interval; there must be a round."""
        of_a_round, freedom = self._variance()
        return t_quantile(0.5 + level / 2, freedom) * math.sqrt(of_a_round / len(self.logs))

    def _variance(self) -> tuple[float, float]:
        """Returns the variance of a round's log ratio, and its degrees of freedom.

        A few rounds that agree by chance do not make it smaller than usual, and rounds that differ by more
        than usual speak for themselves.
        """
        count = len(self.logs)
        usual = USUAL_VARIANCE + (statistics.fmean(self.turn_variances) if self.turn_variances else 0.0)
        if count == 1:
            return usual, USUAL_FREEDOM
        own, own_freedom = trimmed_variance(self.logs)
        freedom = USUAL_FREEDOM + own_freedom
        pooled = (USUAL_FREEDOM * usual + own_freedom * own) / freedom
        least = usual if count <= USUAL_FREEDOM else 0.0
        return max(own, pooled, least), freedom
