"""Builds the tables below the decision: the best of each kind, sensitivity, failures, all trials."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence

from sweeper._version import __version__
from sweeper.core.metrics import metric_row
from sweeper.core.record import TrialRecord
from sweeper.report.before_after import title_of
from sweeper.report.report_data import ReportData
from sweeper.report.table import Cell, Table, cells, columns
from sweeper.report.timeline_charts import compared_trials
from sweeper.report.trial_marks import outcome_of, tone_of, why_not
from sweeper.results import words
from sweeper.results.formatting import ABSENT, bare_metric, figure, loss, seconds, times, value_of
from sweeper.results.numbers.pareto import RULES
from sweeper.results.numbers.sensitivity import by_parameter
from sweeper.results.numbers.summary import Row
from sweeper.results.trial_card import PARTS
from sweeper.results.verdict.bottleneck import verdict_on

USED = ("gpu_sm_active_pct", "gpu_util_pct", "cpu_util_pct")
"""Metrics that show how busy the machine was, the preferred one first."""


def best_of(m: ReportData) -> Iterator[Table]:
    """Yields the best of each model size, the Pareto front, and the best of each loader kind."""
    if m.summary.per_size:
        yield _rows(m, "Best of each model size", m.summary.per_size)
    if m.summary.front:
        yield _front(m)
    if len(m.summary.per_loader) > 1:
        yield _rows(m, "Best of each loader kind", m.summary.per_loader)


def _rows(m: ReportData, caption: str, rows: Sequence[Row]) -> Table:
    table_rows = []
    for row in rows:
        mark = " *" * row.confirmed + " ~" * row.disturbed
        table_rows.append(
            cells(
                row.title,
                Cell(row.name, row.record.number),
                Cell(seconds(row.epoch_seconds), row.epoch_seconds),
                Cell(figure(row.throughput), row.throughput),
                Cell(times(row.speedup) + mark, row.speedup),
                Cell(loss(row.loss) + " ^" * row.is_one_seed, row.loss),
            )
        )
    best = m.best.number if m.best else None
    return Table(
        caption=caption,
        columns=columns("", "trial", "#per epoch", "#samples/s", "#vs baseline", "#loss"),
        rows=tuple(table_rows),
        note="; ".join(words.marks(rows)),
        strong=frozenset(i for i, row in enumerate(rows) if row.record.number == best),
    ).without_empty()


def _front(m: ReportData) -> Table:
    picked = m.summary.picked.number if m.summary.picked else None
    rows = [
        cells(
            Cell(row.name, row.record.number), *(_metric(row.record, name) for name in m.summary.objectives)
        )
        for row in m.summary.front
    ]
    titles = (
        f"#{name}, {metric_row(name).unit}".removesuffix(", ") + words.of_one_seed(m.summary, name)
        for name in m.summary.objectives
    )
    return Table(
        caption="Pareto front: not beaten by any other trial",
        columns=columns("trial", *titles),
        rows=tuple(rows),
        note=f"Marked: {RULES[m.summary.rule]}.",
        strong=frozenset(i for i, row in enumerate(m.summary.front) if row.record.number == picked),
    )


def _metric(record: TrialRecord, name: str) -> Cell:
    value = record.metric(name)
    return Cell(bare_metric(name, value), value)


def sensitivity(m: ReportData) -> Table | None:
    """Returns the cost of other values than the best trial's, the most costly parameter first."""
    rows = [cells(name, words.costs(near, value_of)) for name, near in by_parameter(m.sensitivity).items()]
    if not rows:
        return None
    about = any(cost.how == "predicted" for cost in m.sensitivity)
    return Table(
        caption="What mattered",
        columns=columns("parameter", "~cost of other values"),
        rows=tuple(rows),
        note="about: predicted from all trials" if about else "",
    )


def steps(m: ReportData) -> Table | None:
    """Returns the parts of a step for the baseline, the winner and the best of each loader kind."""
    shown = [(title, r, r.measurement.breakdown) for title, r in compared_trials(m) if r.measurement]
    if not shown:
        return None
    used = [part for part in PARTS if any(getattr(parts, part.field) > 0 for _, _, parts in shown)]
    rows = [
        cells(
            title,
            Cell(m.sweep.name_of(record), record.number),
            Cell(seconds(parts.step_s), parts.step_s),
            *(
                Cell(f"{100 * share:.0f}%", share)
                for share in (getattr(parts, part.field) / parts.step_s for part in used)
            ),
        )
        for title, record, parts in shown
    ]
    return Table(
        caption="Shares of a step",
        columns=columns("", "trial", "#step", *(f"#{part.title}" for part in used)),
        rows=tuple(rows),
    )


def failures(m: ReportData) -> Table | None:
    """Returns the trials that failed or broke a limit, and why."""
    rows = [
        cells(
            Cell(m.sweep.name_of(record), record.number),
            Cell(outcome_of(record), tone=tone_of(record)),
            why_not(record),
        )
        for record in m.ended
        if tone_of(record) in ("failed", "beyond")
    ]
    if not rows:
        return None
    return Table(
        caption="Failed, or beyond a limit", columns=columns("trial", "outcome", "~why"), rows=tuple(rows)
    )


def all_trials(m: ReportData) -> Table:
    """Returns every trial with its settings and results, the fastest first."""
    names = [n for n in m.sweep.varied_names() if any(n in r.config.flatten() for r in m.summary.records)]
    used = next((n for n in USED if any(r.metric(n) is not None for r in m.ended)), None)
    extra = [
        name
        for name in dict.fromkeys(
            ["gpu_mem_peak_gib", "projected_hours", *m.summary.objectives, *m.spec.constraints]
        )
        if name not in ("throughput", "epoch_seconds", "val_loss", used)
        and any(r.metric(name) is not None for r in m.ended)
    ]
    shown = ["throughput", "epoch_seconds", "val_loss", *([used] if used else []), *extra]
    stages = m.sweep.stages()
    speedups = {record.number: m.sweep.table.speedup(record) for record in m.summary.records}
    records = sorted(m.summary.records, key=lambda record: -(speedups[record.number] or 0.0))
    rows = []
    for record in records:
        flat = record.config.canonical().flatten()
        faster = speedups[record.number]
        rows.append(
            cells(
                Cell(f"{record.number:03d}", record.number),
                stages.get(record.number, record.stage),
                Cell(outcome_of(record), tone=tone_of(record)),
                Cell(times(faster), faster),
                *(_metric(record, name) for name in shown),
                verdict.kind.value if (verdict := verdict_on(record)) else None,
                *(_setting(flat.get(name), name in flat) for name in names),
            )
        )
    return Table(
        caption="All trials",
        columns=columns(
            "#trial",
            "stage",
            "outcome",
            "#vs baseline",
            *(f"#{title_of(n)}{words.of_one_seed(m.summary, n)}" for n in shown),
            "verdict",
            *names,
        ),
        rows=tuple(rows),
        strong=frozenset(i for i, r in enumerate(records) if m.best and r.number == m.best.number),
    ).without_empty()


def _setting(value: object, is_known: bool) -> Cell:
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    return Cell(value_of(value), number) if is_known else Cell(ABSENT)


def provenance(m: ReportData) -> Table:
    """Returns where the figures come from."""
    measurement = m.baseline.measurement if m.baseline else None
    marks = m.sweep.journal.read_sweep_file().get("fingerprint") or {}
    facts = {
        "sweep": m.summary.name,
        "state": m.summary.state + (f": {m.summary.reason}" if m.summary.reason else ""),
        "device": m.summary.device,
        **{name: str(value) for name, value in (measurement.versions if measurement else {}).items()},
        "torch requested": marks.get("torch"),
        "runs": " ".join(m.spec.traits.words(m.spec)),
        "data": ", ".join(f"{key}: {value}" for key, value in m.spec.data.items()),
        "samples per epoch": f"{measurement.train_samples:,}"
        if measurement and measurement.train_samples
        else None,
        "code fingerprint": marks.get("code"),
        "seed": str(m.spec.search.seed),
        "began": _moment(m.cost.began),
        "ended": _moment(m.cost.ended),
        "report written by": f"sweeper {__version__}",
    }
    if measurement and "torch" in measurement.versions:
        facts.pop("torch requested")
    rows = [cells(name, str(value)) for name, value in facts.items() if value]
    return Table(caption="Provenance", columns=columns("", "~"), rows=tuple(rows))


def _moment(value: float | None) -> str | None:
    if value is None:
        return None
    try:
        return f"{datetime.datetime.fromtimestamp(value, datetime.UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, ValueError, OSError):
        return None
