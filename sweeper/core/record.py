"""TrialRecord: one trial of a sweep with its outcome, and the table of metrics over it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sweeper.core.config import Scalar, TrialConfig
from sweeper.core.measurement import Failure, Measurement, Outcome, Quality
from sweeper.core.place import Place

BASELINE = 0
"""The baseline's number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """One trial as the sweep folder has it.

    Attributes:
        number: The sweep's own number; the baseline is 0.
        uid: Unique over all sweeps; names the MLflow run.
        stage: `baseline`, `reference` or `search`.
        params: What the search suggested, by parameter name; empty for a reference trial.
        origin: Where its configuration came from, in words; empty where that was not kept.
        outcome: None while it runs.
        quality: The loss of this trial's numerics key: its own pass, or one it was answered from.
        violations: Constraint name -> amount by which it is violated (<= 0 holds).
        derived: Metrics that rest on more than the trial itself, by name: on the production run asked
            for, on the baseline's loss. Infinite where the trial would never get there.
        notes: How a derived metric came about: `time_to_loss_how` is `measured` or `extrapolated`.
        folder: Where its files are.
        place: Where it ran, and beside how many others.
    """

    number: int
    uid: str
    stage: str
    config: TrialConfig
    outcome: Outcome | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""
    quality: Quality | None = None
    violations: Mapping[str, float] = field(default_factory=dict)
    derived: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    place: Place = field(default_factory=Place)

    @property
    def measurement(self) -> Measurement | None:
        """The outcome where it is a measurement."""
        return self.outcome if isinstance(self.outcome, Measurement) else None

    @property
    def failure(self) -> Failure | None:
        """The outcome where it is a failure."""
        return self.outcome if isinstance(self.outcome, Failure) else None

    @property
    def feasible(self) -> bool:
        """Measured, and no constraint is violated."""
        return self.measurement is not None and all(v <= 0 for v in self.violations.values())

    @property
    def told(self) -> Mapping[str, float]:
        """What its pipeline tells of the validation samples beside the loss: `val_accuracy`, ..."""
        told = self.quality.metrics if self.quality is not None else {}
        return {f"val_{name}": value for name, value in told.items() if f"val_{name}" not in METRICS}

    def metric(self, name: str) -> float | None:
        """Returns the metric `name` of the table, or None where this trial does not have it."""
        value = METRICS[name].of(self)
        return value if value is not None and math.isfinite(value) else None

    @property
    def metrics(self) -> dict[str, float]:
        """All that it has: of the table, then `told`."""
        found = {name: self.metric(name) for name in METRICS}
        return {name: value for name, value in found.items() if value is not None} | dict(self.told)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What the sampler is told of a trial, fixed when it is first told.

    Attributes:
        params: The value of every parameter of the space.
        values: One per objective; None where the trial says nothing (`fail`).
        constraints: Violation by name; at most 0 holds. The same names on every trial.
    """

    params: Mapping[str, Scalar]
    values: tuple[float, ...] | None
    constraints: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the metric table.

    Attributes:
        unit: As printed.
        direction: `maximize` or `minimize`: which way is better.
        of: How it is computed from a record; None where it is absent.
        digits: Significant digits worth logging.
    """

    name: str
    unit: str
    direction: str
    of: Callable[[TrialRecord], float | None]
    digits: int = 4


def _of_measurement(read: Callable[[Measurement], float | None]) -> Callable[[TrialRecord], Any]:
    return lambda rec: read(rec.measurement) if rec.measurement is not None else None


def _series(name: str, part: str = "mean") -> Callable[[TrialRecord], Any]:
    return _of_measurement(lambda m: getattr(m.telemetry[name], part) if name in m.telemetry else None)


def _of_derived(name: str) -> Callable[[TrialRecord], float | None]:
    return lambda rec: rec.derived.get(name)


def _summaries(name: str, unit: str, direction: str) -> Iterator[Metric]:
    """Yields mean, median and 95th percentile of a telemetry series inside the windows."""
    yield Metric(name, unit, direction, _series(name))
    for part in ("p50", "p95"):
        yield Metric(f"{name}_{part}", unit, direction, _series(name, part))


def _data_pct(m: Measurement) -> float | None:
    return 100 * m.breakdown.data_fraction if m.breakdown.step_s else None


def _memory_fraction(m: Measurement) -> float | None:
    if m.gpu_mem_peak_gib is None or not m.device.memory_gib:
        return None
    return m.gpu_mem_peak_gib / m.device.memory_gib


def _busy(m: Measurement) -> float | None:
    """Returns the share of the time in which the device had work, by its own events."""
    if m.diagnosis is None or m.diagnosis.busy_s is None or not m.step_ms:
        return None
    return min(100.0, 1e5 * m.diagnosis.busy_s / m.step_ms)


_TABLE = (
    Metric("throughput", "samples/s", "maximize", _of_measurement(lambda m: m.throughput)),
    Metric("epoch_seconds", "s", "minimize", _of_measurement(lambda m: m.epoch_seconds or None)),
    Metric("step_ms", "ms", "minimize", _of_measurement(lambda m: m.step_ms or None)),
    Metric("val_loss", "", "minimize", lambda r: r.quality.val_loss if r.quality else None, 6),
    Metric("projected_hours", "h", "minimize", _of_derived("projected_hours")),
    Metric("time_to_loss_s", "s", "minimize", _of_derived("time_to_loss_s")),
    Metric("data_pct", "%", "minimize", _of_measurement(_data_pct)),
    Metric("startup_s", "s", "minimize", _of_measurement(lambda m: m.startup_seconds)),
    Metric("compile_s", "s", "minimize", _of_measurement(lambda m: None if m.told_by else m.compile_seconds)),
    *_summaries("gpu_util_pct", "%", "maximize"),
    *_summaries("gpu_sm_active_pct", "%", "maximize"),
    Metric("gpu_busy_pct", "%", "maximize", _of_measurement(_busy)),
    *_summaries("gpu_power_w", "W", "minimize"),
    Metric("gpu_mem_peak_gib", "GiB", "minimize", _of_measurement(lambda m: m.gpu_mem_peak_gib)),
    Metric("gpu_mem_peak_fraction", "", "minimize", _of_measurement(_memory_fraction)),
    *_summaries("cpu_util_pct", "%", "maximize"),
    Metric("tree_cpu_pct", "%", "minimize", _series("tree_cpu_pct")),
    Metric("host_mem_peak_gib", "GiB", "minimize", _of_measurement(lambda m: m.host_mem_peak_gib)),
)

METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _TABLE}
"""Objectives, constraints, columns and MLflow metrics all come from here."""

TOLD_DIGITS = 4

LOSS_METRICS = ("val_loss", "time_to_loss_s")
"""Those that rest on the quality pass, a trial's own or one it shares, and on the baseline's."""


def rounded(value: float, digits: int) -> float:
    """Returns `value` with that many significant digits."""
    return float(f"{value:.{digits}g}")
