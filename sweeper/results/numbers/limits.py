"""Says whether a trial is feasible, and which values the sampler gets for it."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from sweeper.core.measurement import INFEASIBLE, Quality
from sweeper.core.record import TrialRecord
from sweeper.schema import SweepSpec

RAN = "ran"
"""The constraint every search has: the trial gave a measurement."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One bound on a metric: `sign` +1 for an upper bound, -1 for a lower one."""

    metric: str
    bound: float
    sign: int

    def violation(self, value: float) -> float:
        """Returns how far `value` is beyond the bound, relative to it; at most 0 within it."""
        scale = abs(self.bound) or 1.0
        return self.sign * (value - self.bound) / scale


@dataclass(frozen=True, slots=True)
class Yardstick:
    """The baseline that other trials are compared with.

    Attributes:
        losses: Its validation losses over several seeds, its own first; empty if none are needed.
    """

    baseline: TrialRecord
    losses: tuple[float, ...] = ()

    @property
    def loss_spread(self) -> float:
        """Standard deviation of the losses over seeds, relative to their mean."""
        return _spread(self.losses)

    def limits(self, spec: SweepSpec) -> list[Limit]:
        """Returns the bounds of the specification in numbers.

        A limit on the ratio of losses is at least two standard deviations of the baseline's loss
        over seeds: smaller differences are noise.
        """
        limits: list[Limit] = []
        for metric, constraint in spec.constraints.items():
            if constraint.max is not None:
                limits.append(Limit(metric, constraint.max, 1))
            if constraint.min is not None:
                limits.append(Limit(metric, constraint.min, -1))
            base = self.baseline.metric(metric)
            if metric == "val_loss" and self.losses:
                base = statistics.fmean(self.losses)
            if base is None:
                continue
            if constraint.max_ratio_to_baseline is not None:
                ratio = constraint.max_ratio_to_baseline
                if metric == "val_loss":
                    ratio = max(ratio, 1 + 2 * self.loss_spread)
                limits.append(Limit(metric, _times(base, ratio), 1))
            if constraint.min_ratio_to_baseline is not None:
                limits.append(Limit(metric, _times(base, constraint.min_ratio_to_baseline), -1))
        return limits

    @property
    def constant_loss(self) -> float | None:
        """Loss of the best constant predictor, if the pipeline knows it."""
        quality = self.baseline.quality
        return quality.constant_loss if quality else None

    @property
    def loss_is_informative(self) -> bool:
        """Whether the baseline's loss is better than a constant's by more than its seed spread."""
        if self.constant_loss is None or not self.losses:
            return True
        return _times(statistics.fmean(self.losses), 1 + 2 * self.loss_spread) < self.constant_loss


@cache
def _spread(losses: tuple[float, ...]) -> float:
    if len(losses) < 2:
        return 0.0
    # A hinge loss may be 0.
    return statistics.stdev(losses) / (abs(statistics.fmean(losses)) or 1.0)


def _times(base: float, ratio: float) -> float:
    """Returns `base` times `ratio`; for a negative `base`, the value as far from it on the same side."""
    # A loss may be negative, and -1 times 1.02 would be a better one.
    return base * ratio if base >= 0 else base * (2 - ratio)


def constraint_names(spec: SweepSpec) -> list[str]:
    """Returns the names every trial has a violation for: `ran`, and each constrained metric."""
    return [RAN, *spec.constraints]


def with_violations(record: TrialRecord, limits: Sequence[Limit], spec: SweepSpec) -> TrialRecord:
    """Returns `record` with its violations. A metric that was not measured violates nothing."""
    if record.outcome is None:
        return record
    failed = record.measurement is None
    violations = {name: 1.0 if failed else 0.0 for name in constraint_names(spec)}
    if not failed:
        for limit in limits:
            value = record.metric(limit.metric)
            if value is not None:
                violations[limit.metric] = max(violations[limit.metric], limit.violation(value))
            elif record.derived.get(limit.metric) == math.inf and limit.sign > 0:
                # The loss was measured, and never reaches its target.
                violations[limit.metric] = max(violations[limit.metric], 1.0)
    return dataclasses.replace(record, violations=violations)


def objective_values(
    record: TrialRecord, others: Iterable[TrialRecord], spec: SweepSpec
) -> tuple[float, ...] | None:
    """Returns a trial's values for the search, one per objective.

    A feasible trial has its own values. An infeasible one gets the worst feasible values so far, so
    that both GP and TPE learn to stay away. None for a trial that the environment ended.
    """
    if record.failure is not None and record.failure.kind not in INFEASIBLE:
        return None
    measured = [other for other in others if other.measurement and other.number != record.number]
    # If nothing is feasible yet, use the worst measured value. A made-up 0 s per epoch would be the best.
    rivals = [other for other in measured if other.feasible] or measured
    values = []
    for objective in spec.objectives:
        value = record.metric(objective.metric) if record.feasible else None
        if value is None:
            seen = [v for v in (other.metric(objective.metric) for other in rivals) if v is not None]
            worst = min if objective.direction == "maximize" else max
            value = worst(seen, default=0.0)
        values.append(value)
    return tuple(values)


def with_quality(record: TrialRecord, shared: Quality | None) -> TrialRecord:
    """Returns `record` with its own loss, or else that of a trial with equal numerics."""
    quality = record.measurement.quality if record.measurement else None
    return dataclasses.replace(record, quality=quality or shared)
