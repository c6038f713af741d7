"""Estimates how far a machine's speeds drift from one measurement to a later one.

The rounds of a confirmation run one after another, so their spread does not show how fast the machine will
be in an hour. Only figures that were measured at two times show it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sweeper.race.log import Round
from sweeper.race.tally import SINGLE_VARIANCE, Tally, Variance, trimmed_mean, trimmed_variance

PRIOR_RATIO, PRIOR_SPEED = 0.034**2, 0.06**2
"""Variances of the log of a ratio and of a speed between measurements, from 54 winners that were measured
again after 10 to 30 minutes on shared hosts."""

PRIOR_FREEDOM = 26
"""Number of repeated measurements that these variances count as."""

LEAST = 0.1
"""Smallest drift variance of a machine, as a share of these, however steady it has been."""

MIN_SHARE = 0.25
"""Share of the largest drift below which a ratio says nothing about it."""
TINY = 1e-18
"""Variance for speeds that are all equal, since it must be above 0."""
APART = 2.0
"""Ratio of two speeds from which the configurations drift apart the most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The drift of a machine between two measurements.

    Attributes:
        ratio: Variance of the log of a ratio of `APART` or more.
        speed: Variance of the log of a speed.
    """

    ratio: Variance
    speed: Variance

    def variance_of(self, ratio: float) -> Variance:
        """Returns the variance of a ratio of two trials, given as its log."""
        return Variance(share(ratio) ** 2 * self.ratio.value, self.ratio.freedom)


def share(ratio: float) -> float:
    """Returns the share of the largest drift that a ratio, given as its log, may have.

    Two configurations drift apart by what they do differently: much if one is twice as fast, next to
    nothing if they are equally fast.
    """
    return min(1.0, abs(ratio) / math.log(APART))


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The speeds of one confirmation or production run.

    Attributes:
        at: Unix time of its end.
        of: Name of its source: the sweep and which of its confirmations, or the production run.
        speeds: For each configuration: the mean log of samples per second, and the variance of that mean.
    """

    at: float
    of: str
    speeds: Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Return:
    """One figure at two times.

    Attributes:
        difference: Difference of its logs.
        noise: The variance that this difference would have without any drift.
        scale: The figure's share of the largest drift.
        weight: Less than 1 for figures that depend on each other.
    """

    difference: float
    noise: float
    scale: float = 1.0
    weight: float = 1.0


def block_of(rounds: Sequence[Round], names: Mapping[int, str], at: float, of: str) -> Block:
    """Returns the block of some rounds, without the arms that dropped out of them.

    These ran in a few rounds only, so their speeds were not measured at the same time as the others'.

    Args:
        names: Each arm's identifier on this machine.
    """
    speeds = {}
    speeds_by_round = [one.speeds for one in rounds]
    for arm, name in names.items():
        logs = [math.log(speeds_of[arm]) for speeds_of in speeds_by_round if arm in speeds_of]
        if len(logs) == len(rounds) > 1:
            speeds[name] = trimmed_mean(logs), trimmed_variance(logs)[0] / len(logs)
    return Block(at=at, of=of, speeds=speeds)


def drift(blocks: Sequence[Block]) -> Drift:
    """Returns the drift between blocks, from their repeated measurements and the usual drift."""
    order = sorted(blocks, key=lambda block: block.at)
    return Drift(ratio=_variance(PRIOR_RATIO, _ratios(order)), speed=_variance(PRIOR_SPEED, _speeds(order)))


def _speeds(blocks: Sequence[Block]) -> Iterator[Return]:
    last: dict[str, tuple[float, float]] = {}
    for block in blocks:
        names = last.keys() & block.speeds.keys()
        for name, now in block.speeds.items():
            if name in names:
                # A slow hour slows down the whole block.
                yield Return(now[0] - last[name][0], now[1] + last[name][1], weight=1 / len(names))
        last.update(block.speeds)


def _ratios(blocks: Sequence[Block]) -> Iterator[Return]:
    last: dict[tuple[str, str], tuple[float, float]] = {}
    for block in blocks:
        for pair in itertools.combinations(sorted(block.speeds), 2):
            (one, noise), (other, more) = (block.speeds[name] for name in pair)
            now = one - other, noise + more
            if pair in last:
                before = last[pair]
                scale = share((now[0] + before[0]) / 2)
                if scale >= MIN_SHARE:
                    # Of n speeds, n - 1 ratios are independent.
                    weight = 2 / len(block.speeds)
                    yield Return(now[0] - before[0], now[1] + before[1], scale, weight)
            last[pair] = now


def _variance(prior: float, returns: Iterable[Return]) -> Variance:
    """Returns the variance from `prior` and `returns`, which count less the noisier they are."""
    total, freedom = PRIOR_FREEDOM * prior, float(PRIOR_FREEDOM)
    for repeat in returns:
        # Both measurements have drifted.
        noise = repeat.noise / (2 * repeat.scale**2)
        weight = repeat.weight * (prior / (prior + noise)) ** 2
        total += weight * (repeat.difference**2 / (2 * repeat.scale**2) - noise)
        freedom += weight
    return Variance(max(total / freedom, LEAST * prior), freedom)


def later_mean(tally: Tally, drift: Variance, early: Sequence[float] = ()) -> tuple[float, float, float]:
    """Returns mean, low and high of the mean that as many later rounds will show (95%).

    Args:
        tally: Log ratios or log speeds of consecutive rounds; there must be one.
        drift: Variance between measurements.
        early: Logs of earlier rounds. They lie far apart in time, so one shows more of the drift, and weighs
            more, than one of the consecutive rounds.
    """
    round_variance, of_mean = tally.round_variance, tally.mean_variance
    # Other load occasionally slows one process by a third, which consecutive rounds may not show.
    alone = max(round_variance.value, SINGLE_VARIANCE)
    blocks = [*((log, alone) for log in early), (tally.mean, of_mean.value)]
    variances = [max(drift.value + noise, TINY) for _, noise in blocks]
    weights = [1 / value / math.fsum(1 / other for other in variances) for value in variances]
    mean = math.fsum(weight * log for weight, (log, _) in zip(weights, blocks, strict=True))
    squared = [weight**2 for weight in weights]
    noise = math.fsum(share * noise for share, (_, noise) in zip(squared, blocks, strict=True))
    # Noise and drift of both the present and the later mean; the freedom is Satterthwaite's.
    parts = [
        Variance(noise + of_mean.value, round_variance.freedom),
        Variance((math.fsum(squared) + 1) * drift.value, drift.freedom),
    ]
    total = sum(part.value for part in parts)
    squares = sum(part.value**2 / part.freedom for part in parts)
    half = Variance(total, total**2 / squares if squares else round_variance.freedom).half_width()
    return mean, mean - half, mean + half
