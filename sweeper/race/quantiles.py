"""Quantiles of Student's t, by the incomplete beta function (DLMF 8.17.22)."""

from __future__ import annotations

import functools
import math

TINY = 1e-300
PRECISION = 1e-15
MAX_TERMS = 100_000
HALVINGS = 200


@functools.lru_cache(4096)
def t_quantile(p: float, freedom: float) -> float:
    """Returns where Student's t reaches the probability `p`, which must be above one half."""
    tail = _find_quantile(2 * (1 - p), freedom / 2, 0.5)
    return math.sqrt(freedom * (1 - tail) / tail)


def _find_quantile(p: float, a: float, b: float) -> float:
    """Returns where the regularised incomplete beta function reaches `p`."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if _beta(middle, a, b) < p:
            low = middle
        else:
            high = middle
    return high


def _beta(x: float, a: float, b: float) -> float:
    """Returns the regularised incomplete beta function."""
    if x > (a + 1) / (a + b + 2):
        # Here, the continued fraction converges slowly.
        return 1 - _beta(1 - x, b, a)
    if x <= 0:
        return 0.0
    log = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log) * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    """Returns the continued fraction of the incomplete beta function, by Lentz's method."""
    above, below = 1.0, 1 / _avoid_zero(1 - (a + b) * x / (a + 1))
    value = below
    for m in range(1, MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            below = 1 / _avoid_zero(1 + term * below)
            above = _avoid_zero(1 + term / above)
            value *= above * below
        if abs(above * below - 1) < PRECISION:
            break
    return value


def _avoid_zero(value: float) -> float:
    return value if abs(value) > TINY else TINY
