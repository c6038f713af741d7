"""Lists the metrics of a trial's record.

A new metric is one function and one row of the table; a third party's metric is the import string of a row,
for the sweeps whose specification names it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sweeper.core.config import TrialConfig
from sweeper.core.gpu_series import by_rank
from sweeper.core.measurement import Measurement, Quality
from sweeper.core.registry import Registry
from sweeper.core.workload import is_reported


class MetricSource(Protocol):
    """What a metric is computed from: a trial's record (`sweeper.core.record.TrialRecord`)."""

    @property
    def config(self) -> TrialConfig:
        """The configuration."""

    @property
    def measurement(self) -> Measurement | None:
        """What was measured; None if it failed."""

    @property
    def quality(self) -> Quality | None:
        """The loss after a number of samples, if there is one."""

    @property
    def derived(self) -> Mapping[str, float]:
        """Metrics that depend on more than the trial itself."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the metric table.

    Attributes:
        unit: The unit as printed.
        direction: The better direction: `maximize` or `minimize`.
        of: Function that computes it from a record; returns None where it is absent. It depends on the
            record alone, and runs again whenever the record changes.
        digits: Significant digits worth logging.
        rests_on_loss: It needs a quality pass, the trial's own or a shared one.
    """

    unit: str
    direction: str
    of: Callable[[MetricSource], float | None]
    digits: int = 4
    rests_on_loss: bool = False


def _of_measurement(read: Callable[[Measurement], float | None]) -> Callable[[MetricSource], Any]:
    return lambda rec: read(rec.measurement) if rec.measurement is not None else None


def _series(name: str, part: str = "mean") -> Callable[[MetricSource], Any]:
    return _of_measurement(lambda m: getattr(m.telemetry[name], part) if name in m.telemetry else None)


def _of_derived(name: str) -> Callable[[MetricSource], float | None]:
    return lambda rec: rec.derived.get(name)


def _summaries(name: str, unit: str, direction: str) -> Mapping[str, Metric]:
    """Returns mean, median and 95th percentile of a telemetry series inside the windows, by name."""
    parts = {f"{name}_{part}": Metric(unit, direction, _series(name, part)) for part in ("p50", "p95")}
    return {name: Metric(unit, direction, _series(name)), **parts}


def _val_loss(record: MetricSource) -> float | None:
    return record.quality.val_loss if record.quality else None


def _data_pct(m: Measurement) -> float | None:
    return 100 * m.breakdown.data_fraction if m.breakdown.step_s else None


def _memory_fraction(m: Measurement) -> float | None:
    if m.gpu_mem_peak_gib is None or not m.device.memory_gib:
        return None
    return m.gpu_mem_peak_gib / m.device.memory_gib


def _busy_pct(m: Measurement) -> float | None:
    """Returns the percentage of the time in which the device had work, by device events."""
    if m.diagnosis is None or m.diagnosis.busy_s is None or not m.step_ms:
        return None
    return min(100.0, 1e5 * m.diagnosis.busy_s / m.step_ms)


def joules_per_sample(m: Measurement, count: int = 1) -> float | None:
    """Returns the energy per sample: of the sampled GPUs, or of the processors; None where that is unknown.

    A GPU that is not sampled is assumed to draw the mean power of the others.
    """
    of_gpus = [gpu["gpu_power_w"].mean for gpu in by_rank(m.telemetry, count) if "gpu_power_w" in gpu]
    if of_gpus and m.trains_on_gpu:
        power = statistics.fmean(of_gpus) * count
    elif not m.trains_on_gpu and "cpu_power_w" in m.telemetry:
        power = m.telemetry["cpu_power_w"].mean
    else:
        return None
    return power / m.throughput if m.throughput else None


def _joules(record: MetricSource) -> float | None:
    if record.measurement is None:
        return None
    return joules_per_sample(record.measurement, record.config.device.count)


METRICS: Mapping[str, Metric] = {
    "throughput": Metric("samples/s", "maximize", _of_measurement(lambda m: m.throughput)),
    "epoch_seconds": Metric("s", "minimize", _of_measurement(lambda m: m.epoch_seconds or None)),
    "step_ms": Metric("ms", "minimize", _of_measurement(lambda m: m.step_ms or None)),
    "val_loss": Metric("", "minimize", _val_loss, 6, rests_on_loss=True),
    "projected_hours": Metric("h", "minimize", _of_derived("projected_hours")),
    "cost_per_run": Metric("", "minimize", _of_derived("cost_per_run")),
    "time_to_loss_s": Metric("s", "minimize", _of_derived("time_to_loss_s"), rests_on_loss=True),
    "data_pct": Metric("%", "minimize", _of_measurement(_data_pct)),
    "startup_s": Metric("s", "minimize", _of_measurement(lambda m: m.startup_seconds)),
    "compile_s": Metric(
        "s", "minimize", _of_measurement(lambda m: None if is_reported(m) else m.compile_seconds)
    ),
    **_summaries("gpu_util_pct", "%", "maximize"),
    **_summaries("gpu_sm_active_pct", "%", "maximize"),
    "gpu_busy_pct": Metric("%", "maximize", _of_measurement(_busy_pct)),
    "gpu_power_w": Metric("W", "minimize", _series("gpu_power_w")),
    "gpu_power_w_p95": Metric("W", "minimize", _series("gpu_power_w", "p95")),
    "joules_per_sample": Metric("J", "minimize", _joules),
    "gpu_mem_peak_gib": Metric("GiB", "minimize", _of_measurement(lambda m: m.gpu_mem_peak_gib)),
    "gpu_mem_peak_fraction": Metric("", "minimize", _of_measurement(_memory_fraction)),
    **_summaries("cpu_util_pct", "%", "maximize"),
    "tree_cpu_pct": Metric("%", "minimize", _series("tree_cpu_pct")),
    "host_mem_peak_gib": Metric("GiB", "minimize", _of_measurement(lambda m: m.host_mem_peak_gib)),
}
"""The built-in metrics by name: the source of all objectives, constraints, columns and MLflow metrics."""

REPORTED_DIGITS = 4

LOSS_METRICS = tuple(name for name, metric in METRICS.items() if metric.rests_on_loss)

OBJECTIVES = Registry("A metric", Metric, METRICS)
"""What objectives and constraints can name."""

_ABSENT = Metric("", "maximize", lambda record: None)


def metric_row(name: str) -> Metric:
    """Returns the row of a metric; if it is unknown here, the row of a metric that no trial has."""
    return OBJECTIVES.look_up(name) or _ABSENT


def is_known_metric(name: str) -> bool:
    """Returns whether a metric is built in, or can be imported here."""
    return metric_row(name) is not _ABSENT


def round_to(value: float, digits: int) -> float:
    """Returns `value` with that many significant digits."""
    return float(f"{value:.{digits}g}")
