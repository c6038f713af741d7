"""Projects a trial to a whole training run: hours, time to a loss, when compiling pays off."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Literal

from sweeper.core.measurement import Measurement
from sweeper.core.record import TrialRecord
from sweeper.results.numbers.limits import Yardstick

Curve = Sequence[tuple[int, float]]
"""(training samples, validation loss), samples ascending."""

How = Literal["measured", "extrapolated"]

MAX_TIMES = 10.0
"""A curve is extrapolated to at most this many times its samples."""
LAST_POINTS = 3
"""The power law is fitted to this many points, because the first ones are steeper."""


def samples_to_loss(curve: Curve, target: float) -> tuple[float, How] | None:
    """Returns the training samples after which the loss reaches `target`, and how that is known.

    If the curve reaches it, interpolates linearly over the logarithm of the samples; a curve that
    starts below reaches it at its first point. Otherwise extrapolates the power law L = a n^-b
    (Hestness et al. 2017, "Deep Learning Scaling is Predictable, Empirically") through the last
    point, with b by least squares over the last three in log-log.

    Returns:
        None if the curve does not fall, its losses have no logarithm, or it would not reach the
        target within ten times its samples.
    """
    for i, (samples, loss) in enumerate(curve):
        if loss > target:
            continue
        if i == 0:
            return float(samples), "measured"
        before, above = curve[i - 1]
        share = (above - target) / (above - loss)
        return before * (samples / before) ** share, "measured"
    last = curve[-LAST_POINTS:]
    if len(last) < 2 or target <= 0:
        return None
    # The losses are above the target, and so above 0.
    x = [math.log(samples) for samples, _ in last]
    slope = statistics.linear_regression(x, [math.log(loss) for _, loss in last]).slope
    end, loss = last[-1]
    # In logarithms, because a slope close to 0 would overflow.
    further = math.log(loss / target) / -slope if slope < 0 else math.inf
    return (end * math.exp(further), "extrapolated") if further <= math.log(MAX_TIMES) else None


def start_seconds(measured: Measurement) -> float:
    """Returns the seconds before training runs at full speed: start-up and compilation."""
    return measured.startup_seconds + measured.compile_seconds


def projected_hours(measured: Measurement, samples: float, throughput: float) -> float:
    """Returns the hours of a run over `samples` training samples: one start, then a steady speed.

    Args:
        throughput: Samples per second, as measured or confirmed; above 0.
    """
    return (start_seconds(measured) + samples / throughput) / 3600


def with_derived(
    record: TrialRecord,
    yardstick: Yardstick | None,
    production_samples: float | None,
    price_per_hour: float | None = None,
) -> TrialRecord:
    """Returns `record` with the metrics that depend on the production run and the baseline's loss.

    The loss to reach is the baseline's after the quality pass, as the mean over its seeds. A trial
    that does not reach it in reasonable time gets an infinite time: absent as a metric, but beyond
    every limit on it.

    Args:
        yardstick: None until the baseline is measured.
        production_samples: Training samples of the production run; None if none is configured.
        price_per_hour: Of one device; None if unknown.
    """
    measured = record.measurement
    derived: dict[str, float] = {}
    notes: dict[str, str] = {}
    if measured is not None and measured.throughput > 0:
        if production_samples is not None:
            hours = projected_hours(measured, production_samples, measured.throughput)
            derived["projected_hours"] = hours
            if price_per_hour is not None:
                derived["cost_per_run"] = hours * price_per_hour * record.config.device.count
        estimate = _samples_to_baseline(record, yardstick) if yardstick is not None else None
        if estimate is not None:
            samples, how = estimate
            derived["time_to_loss_s"] = start_seconds(measured) + samples / measured.throughput
            if math.isfinite(samples):
                notes["time_to_loss_how"] = how
    return dataclasses.replace(record, derived=derived, notes=notes)


def _samples_to_baseline(record: TrialRecord, yardstick: Yardstick) -> tuple[float, How] | None:
    """Returns the samples after which a trial reaches the baseline's loss; None if unknown."""
    quality, base_quality = record.quality, yardstick.baseline.quality
    if quality is None or base_quality is None or not yardstick.losses:
        return None
    if quality.key == base_quality.key:
        # With the baseline's numerics, it reaches that loss by definition, whatever its first seed gave.
        return quality.samples, "measured"
    estimate = samples_to_loss(quality.curve, statistics.fmean(yardstick.losses))
    if estimate is None and len(quality.curve) > 1:
        return math.inf, "extrapolated"
    return estimate


def break_even_steps(slow: TrialRecord, fast: TrialRecord) -> float | None:
    """Returns the optimiser step from which `fast` has made up for starting later than `slow`.

    This is the extra start time over the time saved per step of `fast`: the difference in seconds
    per sample times its global batch. Infinite if it is no faster; 0 if it starts no later.

    Returns:
        None if one of them was not measured.
    """
    left, right = slow.measurement, fast.measurement
    if left is None or right is None or not left.throughput > 0 or not right.throughput > 0:
        return None
    saved = (1 / left.throughput - 1 / right.throughput) * fast.config.global_batch
    extra = start_seconds(right) - start_seconds(left)
    if saved <= 0:
        return math.inf
    return float(math.ceil(extra / saved)) if extra > 0 else 0.0


def eager_rival(record: TrialRecord, records: Iterable[TrialRecord]) -> TrialRecord | None:
    """Returns the eager trial to compare a compiled one with.

    It is the one that differs only in `compile.mode`, else the fastest feasible one of the same
    work.

    Returns:
        None if `record` was not in fact compiled or captured, or nothing eager was measured.
    """
    mode = record.config.compile.mode
    measured = record.measurement
    if measured is None or mode == "eager" or measured.effective.get("compile.mode", "").startswith("eager"):
        return None
    rivals = [
        other
        for other in records
        if other.config.compile.mode == "eager"
        and other.feasible
        and other.measurement is not None
        and not other.measurement.is_screened
        and other.config.work_key() == record.config.work_key()
    ]
    twin = record.config.replace({"compile.mode": "eager"}).key()
    return max(
        rivals,
        key=lambda other: (other.config.key() == twin, other.metric("throughput") or 0.0),
        default=None,
    )
