"""Lists the metrics of a trial's record.

A new metric is one function and one row of the table; a third party's metric is an entry point in
`sweeper.objectives` that provides a row, for the sweeps whose specification names it.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sweeper.core.gpu_series import by_rank
from sweeper.core.measurement import Measurement
from sweeper.core.registry import Registry
from sweeper.errors import UserError

if TYPE_CHECKING:
    from sweeper.core.record import TrialRecord


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

    name: str
    unit: str
    direction: str
    of: Callable[[TrialRecord], float | None]
    digits: int = 4
    rests_on_loss: bool = False


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


def _val_loss(record: TrialRecord) -> float | None:
    return record.quality.val_loss if record.quality else None


def _data_pct(m: Measurement) -> float | None:
    return 100 * m.breakdown.data_fraction if m.breakdown.step_s else None


def _memory_fraction(m: Measurement) -> float | None:
    if m.gpu_mem_peak_gib is None or not m.device.memory_gib:
        return None
    return m.gpu_mem_peak_gib / m.device.memory_gib


def _busy(m: Measurement) -> float | None:
    """Returns the percentage of the time in which the device had work, by device events."""
    if m.diagnosis is None or m.diagnosis.busy_s is None or not m.step_ms:
        return None
    return min(100.0, 1e5 * m.diagnosis.busy_s / m.step_ms)


def joules_per_sample(m: Measurement, count: int = 1) -> float | None:
    """Returns the energy per sample: of the sampled GPUs, or of the processors; None where that is unknown.

    A GPU that is not sampled is assumed to draw the mean power of the others.
    """
    of_gpus = [each["gpu_power_w"].mean for each in by_rank(m.telemetry, count) if "gpu_power_w" in each]
    if of_gpus and m.trains_on_gpu:
        power = statistics.fmean(of_gpus) * count
    elif not m.trains_on_gpu and "cpu_power_w" in m.telemetry:
        power = m.telemetry["cpu_power_w"].mean
    else:
        return None
    return power / m.throughput if m.throughput else None


def _joules(record: TrialRecord) -> float | None:
    if record.measurement is None:
        return None
    return joules_per_sample(record.measurement, record.config.device.count)


_TABLE = (
    Metric("throughput", "samples/s", "maximize", _of_measurement(lambda m: m.throughput)),
    Metric("epoch_seconds", "s", "minimize", _of_measurement(lambda m: m.epoch_seconds or None)),
    Metric("step_ms", "ms", "minimize", _of_measurement(lambda m: m.step_ms or None)),
    Metric("val_loss", "", "minimize", _val_loss, 6, rests_on_loss=True),
    Metric("projected_hours", "h", "minimize", _of_derived("projected_hours")),
    Metric("cost_per_run", "", "minimize", _of_derived("cost_per_run")),
    Metric("time_to_loss_s", "s", "minimize", _of_derived("time_to_loss_s"), rests_on_loss=True),
    Metric("data_pct", "%", "minimize", _of_measurement(_data_pct)),
    Metric("startup_s", "s", "minimize", _of_measurement(lambda m: m.startup_seconds)),
    Metric(
        "compile_s", "s", "minimize", _of_measurement(lambda m: None if m.reported_by else m.compile_seconds)
    ),
    *_summaries("gpu_util_pct", "%", "maximize"),
    *_summaries("gpu_sm_active_pct", "%", "maximize"),
    Metric("gpu_busy_pct", "%", "maximize", _of_measurement(_busy)),
    Metric("gpu_power_w", "W", "minimize", _series("gpu_power_w")),
    Metric("gpu_power_w_p95", "W", "minimize", _series("gpu_power_w", "p95")),
    Metric("joules_per_sample", "J", "minimize", _joules),
    Metric("gpu_mem_peak_gib", "GiB", "minimize", _of_measurement(lambda m: m.gpu_mem_peak_gib)),
    Metric("gpu_mem_peak_fraction", "", "minimize", _of_measurement(_memory_fraction)),
    *_summaries("cpu_util_pct", "%", "maximize"),
    Metric("tree_cpu_pct", "%", "minimize", _series("tree_cpu_pct")),
    Metric("host_mem_peak_gib", "GiB", "minimize", _of_measurement(lambda m: m.host_mem_peak_gib)),
)

METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _TABLE}
"""The built-in metrics by name: the source of all objectives, constraints, columns and MLflow metrics."""

REPORTED_DIGITS = 4

LOSS_METRICS = tuple(metric.name for metric in _TABLE if metric.rests_on_loss)

OBJECTIVES = Registry("objectives", "objectives", Metric, METRICS, lambda row: row.name)
"""Every metric that a specification can name here."""


_ABSENT = Metric("", "", "maximize", lambda record: None)


def find_metric(name: str) -> Metric:
    """Returns the row of a metric that a sweep optimises or limits.

    Raises:
        UserError: There is no such metric here, or its entry point is broken.
    """
    return OBJECTIVES.get(name)


def metric_row(name: str) -> Metric:
    """Returns the row of a metric; if it is unknown here, the row of a metric that no trial has.

    A sweep's folder may name a metric whose distribution is gone: it must still be listed and shown.
    """
    return METRICS.get(name) or _added_row(name, tuple(sys.path))


def is_known_metric(name: str) -> bool:
    """Returns whether a metric is built in, or its distribution is installed here."""
    return metric_row(name) is not _ABSENT


@functools.cache
def _added_row(name: str, paths: tuple[str, ...]) -> Metric:
    try:
        return find_metric(name)
    except UserError:
        return _ABSENT


def with_added(record: TrialRecord, names: Iterable[str]) -> TrialRecord:
    """Returns `record` with the third-party metrics among `names`; unchanged if it was not measured.

    Raises:
        UserError: One of them fails, or returns something other than a number.
    """
    found: dict[str, float] = {}
    for name in names:
        if name not in METRICS and record.measurement is not None:
            value = _asked(metric_row(name), record)
            if value is not None:
                found[name] = value
    return dataclasses.replace(record, derived={**record.derived, **found}) if found else record


def _asked(metric: Metric, record: TrialRecord) -> float | None:
    try:
        value = metric.of(record)
        return None if value is None else float(value)
    except Exception as error:
        raise UserError(
            f"the metric `{metric.name}` ({OBJECTIVES.provider(metric.name)}) must return a number or None, "
            f"but for trial {record.number} it raised {type(error).__name__}: {error}. Fix it and run the "
            "sweep again to continue."
        ) from error


def rounded(value: float, digits: int) -> float:
    """Returns `value` with that many significant digits."""
    return float(f"{value:.{digits}g}")
