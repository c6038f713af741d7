"""Compares how soon the winner and the baseline reach the baseline's loss.

Throughput compares equal samples, but a larger batch or another learning rate may need more or fewer of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from sweeper.race.quantiles import t_quantile
from sweeper.race.tally import LEVEL, interval_of
from sweeper.results.numbers.confirmation import Ratio
from sweeper.results.numbers.projection import Curve, samples_to_loss

Points = tuple[tuple[int, float], ...]
"""A curve: (training samples, validation loss)."""

MAX_SAMPLES = 3
"""Largest multiple of the baseline's samples that the winner may need."""

MIN_POINTS = 3
"""Fewest points with which a curve shows when it reaches a loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToLoss:
    """The baseline's training time to a loss, over the winner's.

    Attributes:
        loss: The loss that both reach.
        ratio: Geometric mean over seeds of the ratio of samples, times the confirmed ratio of speeds.
        low: Lower end of the 95% interval for one later training of each, `high` the upper one.
        samples: For each seed, the samples after which the baseline and the winner reached it.
        baseline: The baseline's loss curve with each seed, `winner` the winner's; empty in files of earlier
            versions.
    """

    loss: float
    ratio: float
    low: float
    high: float
    samples: tuple[tuple[float, float], ...]
    baseline: tuple[Points, ...] = ()
    winner: tuple[Points, ...] = ()

    @property
    def samples_ratio(self) -> float:
        """The baseline's samples to the loss over the winner's."""
        return math.exp(statistics.fmean(math.log(base / best) for base, best in self.samples))


def target(curves: Sequence[Curve]) -> float:
    """Returns the loss that the baseline reaches with every seed."""
    return max(curve[-1][1] for curve in curves)


def time_to_loss(
    loss: float, baseline: Sequence[Curve], winner: Sequence[Curve], speed: Ratio, one: float
) -> TimeToLoss | None:
    """Returns the comparison; None if one of the winner's trainings does not reach the loss.

    Args:
        loss: The loss that all of the baseline's trainings reach.
        baseline: Its curve with each seed, `winner` the winner's with the same seeds.
        speed: The winner's confirmed speed against the baseline.
        one: How far the log ratio of one process of each may be from that of all rounds
            (`single_half_width`).
    """
    samples = []
    for curves in zip(baseline, winner, strict=True):
        estimates = [samples_to_loss(curve, loss) for curve in curves]
        if any(estimate is None or estimate[1] != "measured" for estimate in estimates):
            return None
        samples.append((estimates[0][0], estimates[1][0]))  # type: ignore[index]
    logs = [math.log(base / best) for base, best in samples]
    mean = math.log(speed.ratio) + statistics.fmean(logs)
    half = _half_width(logs, speed, one)
    return TimeToLoss(
        loss=loss,
        ratio=math.exp(mean),
        low=math.exp(mean - half),
        high=math.exp(mean + half) if math.isfinite(half) else math.inf,
        samples=tuple(samples),
        baseline=tuple(map(tuple, baseline)),
        winner=tuple(map(tuple, winner)),
    )


def _half_width(logs: Sequence[float], speed: Ratio, one: float) -> float:
    """Returns half the width of the interval for one more seed, and for one later process of each."""
    if len(logs) < 2 or not speed.high or not math.isfinite(speed.high) or speed.low <= 0:
        return math.inf
    times = t_quantile(0.5 + LEVEL / 2, len(logs) - 1)
    of_samples = times * statistics.stdev(logs) * math.sqrt(1 + 1 / len(logs))
    return math.hypot(of_samples, math.log(speed.high / speed.low) / 2, one)


def band(curves: Sequence[Curve]) -> list[tuple[int, float, float, float]]:
    """Returns samples, mean loss and the ends of its 95% interval, at each point that all curves have."""
    rows = []
    for points in zip(*curves, strict=False):
        losses = [loss for _, loss in points]
        if len(losses) < 2 or len({samples for samples, _ in points}) > 1:
            break
        rows.append((points[0][0], *interval_of(losses)))
    return rows
