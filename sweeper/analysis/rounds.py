"""Compares two trials over the rounds in which both ran."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Collection, Mapping, Sequence

from sweeper.analysis.intervals import Variance, VarianceOf, interval, spread, variance_of
from sweeper.race.tally import LEVEL

Round = Mapping[int, float]
"""Throughput by trial number: one fresh process each, in random order, baseline included."""


def log_ratios(rounds: Sequence[Round], number: int, to: int) -> list[float]:
    """Returns the log of one trial's throughput over another's, for each round with both."""
    return [math.log(each[number] / each[to]) for each in rounds if number in each and to in each]


def versus(rounds: Sequence[Round], number: int, to: int) -> tuple[float, float, float]:
    """Returns the log of one trial's throughput over another's, with the ends of its interval (95%).

    A few rounds say little about their spread, so that of the other pairs in the same rounds counts too.
    All three are infinite if no round has both.
    """
    logs = log_ratios(rounds, number, to)
    if not logs:
        return -math.inf, -math.inf, math.inf
    return interval(logs, others=usual_variance(rounds, {number, to}))


def usual_variance(
    rounds: Sequence[Round], apart: Collection[int], of: VarianceOf = variance_of
) -> Variance | None:
    """Returns the pooled variance of the other pairs' log ratios over the rounds; None without other pairs.

    Args:
        apart: The pair to leave out.
    """
    pairs = itertools.combinations(sorted({number for each in rounds for number in each}), 2)
    found = [log_ratios(rounds, *pair) for pair in pairs if set(pair) != set(apart)]
    spreads = [of(logs) for logs in found if len(logs) > 1]
    freedom = sum(each.freedom for each in spreads)
    if not freedom:
        return None
    return Variance(sum(each.freedom * each.value for each in spreads) / freedom, freedom)


def one_more(rounds: Sequence[Round], number: int, to: int, level: float = LEVEL) -> float:
    """Returns how far the log ratio of one later process of each may be from the mean of later rounds.

    The mean is of as many later rounds as `rounds` has. Infinite for fewer than two rounds with both.
    """
    logs = log_ratios(rounds, number, to)
    if len(logs) < 2:
        return math.inf
    # It may be disturbed, like any round, so nothing is trimmed.
    own = spread(logs, usual_variance(rounds, {number, to}, _plain_variance), _plain_variance)
    return Variance((1 - 1 / len(logs)) * own.value, own.freedom).half_width(level)


def _plain_variance(logs: Sequence[float]) -> Variance:
    return Variance(statistics.variance(logs), len(logs) - 1)
