"""Computes the t interval of a mean."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sweeper.race.tally import LEVEL, Variance, trimmed_mean, trimmed_variance


def interval(logs: Sequence[float], level: float = LEVEL) -> tuple[float, float, float]:
    """Returns mean, low and high of the t interval (95%); infinite for fewer than two values.

    From `ROBUST_ROUNDS` on, they are trimmed (Yuen 1974, 10.1093/biomet/61.1.165).
    """
    mean, count = trimmed_mean(logs), len(logs)
    if count < 2:
        return mean, -math.inf, math.inf
    of_one, freedom = trimmed_variance(logs)
    half = Variance(of_one / count, freedom).half_width(level)
    return mean, mean - half, mean + half
