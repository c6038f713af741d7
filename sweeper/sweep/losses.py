"""How long a trial trains before its loss is measured, and whether it is measured at all."""

from __future__ import annotations

from sweeper.core.measurement import Measurement
from sweeper.core.record import LOSS_METRICS
from sweeper.spec import SweepSpec

NUM_SEEDS = 3
MIN_STEPS_OF_LARGEST = 50


def looks_at_loss(spec: SweepSpec) -> bool:
    """Returns whether an objective or a constraint rests on the loss, so that trials need a quality pass."""
    goals = {*spec.constraints, *(objective.metric for objective in spec.objectives)}
    return not goals.isdisjoint(LOSS_METRICS)


def trained_samples(baseline: Measurement) -> int:
    """Returns how many samples a script had trained on when its windows were over: its loss is there."""
    warm = baseline.throughput * baseline.warmup_seconds
    return max(1, int(sum(window.samples for window in baseline.windows) + warm))


def auto_quality_samples(baseline: Measurement, batch_size: int, seconds: float) -> int:
    """Returns how many samples the baseline trains on in `seconds`, its data path left aside.

    The quality pass gathers on the device, whatever the baseline's loader costs.
    """
    parts = baseline.breakdown
    per_second = batch_size / max(parts.compute_s, 1e-9)
    samples = max(per_second, baseline.throughput) * seconds
    return max(1000, int(samples) // 1000 * 1000)
