"""Compares the baseline with the best trial: changed settings and their effect on each figure."""

from __future__ import annotations

from collections.abc import Mapping

from sweeper.core.config import Scalar, TrialConfig
from sweeper.core.metrics import metric_row
from sweeper.report.report_data import ReportData
from sweeper.report.table import Table, cells, columns
from sweeper.results import words
from sweeper.results.formatting import bare_metric, metric, times, value_of

COMPARED = (
    "throughput",
    "epoch_seconds",
    "val_loss",
    "projected_hours",
    "time_to_loss_s",
    "step_ms",
    "data_pct",
    "gpu_sm_active_pct",
    "gpu_util_pct",
    "gpu_power_w",
    "gpu_mem_peak_gib",
    "cpu_util_pct",
    "startup_s",
    "compile_s",
)
"""Metrics of the before-and-after table, where known; objectives and limited metrics are added."""

TITLES = {
    "throughput": "throughput",
    "epoch_seconds": "per epoch",
    "val_loss": "loss",
    "projected_hours": "production run",
    "time_to_loss_s": "time to the baseline's loss",
    "step_ms": "step",
    "data_pct": "data path, share of a step",
    "gpu_sm_active_pct": "GPU: SMs active",
    "gpu_util_pct": "GPU utilisation",
    "gpu_power_w": "GPU power",
    "gpu_mem_peak_gib": "peak GPU memory",
    "cpu_util_pct": "CPU utilisation",
    "startup_s": "start-up",
    "compile_s": "compilation",
}


def title_of(name: str) -> str:
    """Returns a metric's title for a column or row, with its unit."""
    unit = metric_row(name).unit
    return TITLES.get(name, name) + (f", {unit}" if unit not in ("", "s") else "")


def limits_in_words(m: ReportData) -> dict[str, str]:
    """Returns the limits in force by metric: `at most 0.427`."""
    limits: dict[str, str] = {}
    for limit in m.sweep.table.limits():
        word = f"{'at most' if limit.sign > 0 else 'at least'} {metric(limit.metric, limit.bound)}"
        limits[limit.metric] = f"{limits[limit.metric]}, {word}" if limit.metric in limits else word
    return limits


def changes(m: ReportData) -> Table | None:
    """Returns the settings in which the best trial differs from the baseline."""
    if m.baseline is None or m.best is None:
        return None
    before, after = (record.config.canonical().flatten() for record in (m.baseline, m.best))
    rows = [
        cells(name, _setting(before, name), _setting(after, name))
        for name in dict.fromkeys([*m.sweep.varied_names(), *after, *before])
        if _setting(before, name) != _setting(after, name) and name != "optimizer.lr_batch_size"
    ]
    rates = [_learning_rate(record.config) for record in (m.baseline, m.best)]
    if rates[0] != rates[1] and None not in rates:
        rows.append(cells("learning rate in effect", *rates))
    return Table(
        caption="What changes",
        columns=columns("setting", "~your baseline", f"~{m.best_word}"),
        rows=tuple(rows),
        note="Everything else is as in the baseline.",
    )


def _setting(flat: Mapping[str, Scalar], name: str) -> str | None:
    return value_of(flat[name]) if name in flat else None


def _learning_rate(config: TrialConfig) -> str | None:
    """Returns the learning rate that the rule gives; None for a script or without a rule."""
    if not config.names_are_fields or config.optimizer.lr_rule == "none":
        return None
    return f"{config.optimizer.lr_at(config.global_batch):.4g}"


def before_and_after(m: ReportData) -> Table | None:
    """Returns the metrics of the baseline and of the best trial."""
    if m.baseline is None:
        return None
    limits = limits_in_words(m)
    rows = []
    for name in dict.fromkeys([*COMPARED, *m.summary.objectives, *limits]):
        before = m.summary.value_of(m.baseline, name)
        after = m.summary.value_of(m.best, name) if m.best else None
        if not before and not after:
            continue
        shown = [bare_metric(name, before), *([bare_metric(name, after)] if m.best else [])]
        change = _change(m, name, before, after)
        row = [
            title_of(name),
            *shown,
            *([change] if m.best else []),
            *([limits.get(name, "")] if limits else []),
        ]
        rows.append(cells(*row))
    titles = [
        "",
        "#your baseline",
        *([f"#{m.best_word}", "#ratio"] if m.best else []),
        *(["limit"] if limits else []),
    ]
    base, best = m.decision.baseline, m.decision.best
    note = ""
    if base is not None and best is not None and len(base.losses) != len(best.losses):
        note = f"Loss: {words.seeds(base)}, then {words.seeds(best)}."
    return Table(
        caption="Before and after" if m.best else "Your baseline",
        columns=columns(*titles),
        rows=tuple(rows),
        note=note,
    )


def _change(m: ReportData, name: str, before: float | None, after: float | None) -> str | None:
    """Returns `12.3x`, or `1/12.3` for a decrease; for the speed, the confirmed ratio."""
    if name == "throughput" and m.decision.is_confirmed:
        return times(m.decision.speedup)
    if not before or after is None or after / before < 0:
        return None
    ratio = after / before
    return times(ratio) if ratio > 0.5 or not ratio else f"1/{1 / ratio:.3g}"
