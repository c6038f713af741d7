"""Computes means and intervals of logs: of a few consecutive rounds, and of as many later ones."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sweeper.race.quantiles import f_quantile, t_quantile
from sweeper.race.tally import LEVEL, trimmed_mean, trimmed_variance

PRIOR_ROUNDS, ALIKE_LEVEL = 2, 0.1
"""Number of rounds that the spread of the other pairs counts as, unless an F test at this level tells the
spreads apart. On recorded noise, this makes an interval of three rounds a quarter narrower without making it
wrong more often."""
TINY = 1e-18
"""Variance for speeds that are all equal, since it must be above 0."""
EARLY_NOISE = 0.09**2
"""Smallest variance of the log ratio of two single processes: on shared hosts, other load occasionally slows
one by a third, which consecutive rounds may not show."""


@dataclass(frozen=True, slots=True)
class Variance:
    """An estimated variance.

    Attributes:
        freedom: Its degrees of freedom.
    """

    value: float
    freedom: float

    def is_like(self, other: Variance) -> bool:
        """Returns whether both may be estimates of the same variance (F test)."""
        more, less = sorted((self, other), key=lambda each: -each.value)
        most = f_quantile(1 - ALIKE_LEVEL / 2, more.freedom, less.freedom)
        return more.value <= most * less.value

    def half_width(self, level: float = LEVEL) -> float:
        """Returns the half-width of the interval around a mean with this variance (t distribution)."""
        return t_quantile(0.5 + level / 2, self.freedom) * math.sqrt(self.value)


VarianceOf = Callable[[Sequence[float]], Variance]
"""Returns the variance of logs."""


def interval(
    logs: Sequence[float], level: float = LEVEL, others: Variance | None = None
) -> tuple[float, float, float]:
    """Returns mean, low and high of the t interval of `logs` (95%); infinite for fewer than two.

    From `ROBUST_ROUNDS` on, they are trimmed (Yuen 1974, 10.1093/biomet/61.1.165).

    Args:
        others: The variance of similar differences. It also counts, unless an F test tells it apart.
    """
    mean, count = trimmed_mean(logs), len(logs)
    if count < 2:
        return mean, -math.inf, math.inf
    own = spread(logs, others)
    half = Variance(own.value / count, own.freedom).half_width(level)
    return mean, mean - half, mean + half


def variance_of(logs: Sequence[float]) -> Variance:
    """Returns the variance of at least two logs; over their number, it is that of `trimmed_mean`."""
    return Variance(*trimmed_variance(logs))


def spread(logs: Sequence[float], others: Variance | None, of: VarianceOf = variance_of) -> Variance:
    """Returns the variance of at least two logs, combined with `others` if the two are alike."""
    own = of(logs)
    if others is None or not own.is_like(others):
        return own
    freedom = own.freedom + PRIOR_ROUNDS
    return Variance((own.freedom * own.value + PRIOR_ROUNDS * others.value) / freedom, freedom)


def later(
    logs: Sequence[float], drift: Variance, others: Variance | None = None, early: Sequence[float] = ()
) -> tuple[float, float, float]:
    """Returns mean, low and high of the mean that as many later rounds will show (95%).

    Args:
        logs: Log ratios or log speeds of consecutive rounds.
        drift: Variance between measurements.
        others: As for `interval`.
        early: Logs of earlier rounds, each at another time: each weighs more than a consecutive round.
    """
    count = len(logs)
    if count < 2:
        return statistics.fmean(logs), -math.inf, math.inf
    own = spread(logs, others)
    alone = max(own.value, EARLY_NOISE)
    blocks = [*((each, alone) for each in early), (trimmed_mean(logs), own.value / count)]
    variances = [max(drift.value + noise, TINY) for _, noise in blocks]
    weights = [1 / each / math.fsum(1 / other for other in variances) for each in variances]
    mean = math.fsum(weight * log for weight, (log, _) in zip(weights, blocks, strict=True))
    squared = [weight**2 for weight in weights]
    noise = math.fsum(each * noise for each, (_, noise) in zip(squared, blocks, strict=True))
    # Noise and drift of both the present and the later mean; the freedom is Satterthwaite's.
    parts = [
        Variance(noise + own.value / count, own.freedom),
        Variance((math.fsum(squared) + 1) * drift.value, drift.freedom),
    ]
    total = sum(each.value for each in parts)
    squares = sum(each.value**2 / each.freedom for each in parts)
    half = Variance(total, total**2 / squares if squares else parts[0].freedom).half_width()
    return mean, mean - half, mean + half
