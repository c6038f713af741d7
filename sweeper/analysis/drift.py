"""How far a machine's speeds drift from one measurement to a later one.

The rounds of a confirmation run one after another. Their spread tells nothing of what the machine will be
like in an hour: that shows only where the same was measured at two times.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sweeper.analysis.confirmation import Drift, Round, Variance

PRIOR_RATIO, PRIOR_SPEED = 0.045**2, 0.08**2
"""Variances of the log of a ratio and of a speed between measurements, from winners that were measured again
after half an hour on shared hosts."""

PRIOR_FREEDOM = 6
"""Repeated measurements for which they count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The speeds of one confirmation.

    Attributes:
        at: Unix time of its end.
        speeds: For each configuration: the mean log of samples per second, and the variance of that mean.
    """

    at: float
    speeds: Mapping[str, tuple[float, float]]


def block_of(rounds: Sequence[Round], names: Mapping[int, str], at: float) -> Block:
    """Returns the block of some rounds.

    Args:
        names: What identifies each trial on this machine.
    """
    speeds = {}
    for number, name in names.items():
        logs = [math.log(each[number]) for each in rounds if number in each]
        if len(logs) > 1:
            speeds[name] = statistics.fmean(logs), statistics.variance(logs) / len(logs)
    return Block(at=at, speeds=speeds)


def drift(blocks: Sequence[Block]) -> Drift:
    """Returns the drift between blocks, as far as they have measured the same; else what is usual."""
    order = sorted(blocks, key=lambda each: each.at)
    return Drift(
        ratio=_variance(PRIOR_RATIO, _ratios(order)), speed=_variance(PRIOR_SPEED, _speeds(order))
    )


def _speeds(blocks: Sequence[Block]) -> Iterator[float]:
    """Yields the variance that each speed's return shows."""
    last: dict[str, tuple[float, float]] = {}
    for block in blocks:
        for name, now in block.speeds.items():
            if name in last:
                yield _between(now[0] - last[name][0], now[1] + last[name][1])
            last[name] = now


def _ratios(blocks: Sequence[Block]) -> Iterator[float]:
    """Yields the variance that the return of each pair of configurations shows."""
    last: dict[tuple[str, str], tuple[float, float]] = {}
    for block in blocks:
        for one, other in itertools.combinations(sorted(block.speeds), 2):
            (a, noise_a), (b, noise_b) = block.speeds[one], block.speeds[other]
            now = a - b, noise_a + noise_b
            if (one, other) in last:
                before = last[one, other]
                yield _between(now[0] - before[0], now[1] + before[1])
            last[one, other] = now


def _between(difference: float, noise: float) -> float:
    # Both measurements have drifted.
    return max(0.0, (difference**2 - noise) / 2)


def _variance(prior: float, found: Iterator[float]) -> Variance:
    values = list(found)
    freedom = PRIOR_FREEDOM + len(values)
    return Variance((PRIOR_FREEDOM * prior + sum(values)) / freedom, freedom)
