"""Draws the baseline next to the winner: the machine over time, the parts of a step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sweeper.core.record import TrialRecord
from sweeper.report.chart import Axis, Chart, Marks
from sweeper.report.report_data import ReportData
from sweeper.report.series import Series, TimedValues, downsample, read_series
from sweeper.results.formatting import seconds
from sweeper.results.trial_card import PARTS

SHOWN = {
    "gpu_sm_active_pct": "GPU: SMs active, %",
    "gpu_util_pct": "GPU utilisation, %",
    "gpu_power_w": "GPU power, W",
    "gpu_mem_used_gib": "GPU memory, GiB",
    "cpu_util_pct": "CPU utilisation, %",
}


def timelines(m: ReportData) -> Iterator[Chart]:
    """Yields the machine's telemetry while the baseline and the winner were measured."""
    pair = [("baseline", "baseline", m.baseline), ("winner", m.best_word, m.best)]
    sides = [(tone, word, r, _series(r)) for tone, word, r in pair if r is not None]
    for name, title in SHOWN.items():
        marks = [
            Marks(
                name=word,
                tone=tone,
                kind="line",
                dashed=tone == "baseline",
                x=tuple(column.seconds - _start(record, column)),
                y=tuple(column.values),
            )
            for tone, word, record, series in sides
            if (column := series.get(name)) is not None and len(column.values) > 1
        ]
        if marks:
            max_value = 100.0 if title.endswith("%") else None
            yield Chart(
                key=f"time-{name}",
                title=title,
                alt=f"{title} over time, of the {' and the '.join(line.name for line in marks)}.",
                x=Axis("seconds since measuring began"),
                y=Axis(max_value=max_value),
                marks=tuple(marks),
                upright=0.0,
            )


def _series(record: TrialRecord) -> Series:
    series = read_series(Path(record.folder), SHOWN)
    return {name: downsample(column) for name, column in series.items()}


def _start(record: TrialRecord, column: TimedValues) -> float:
    """Returns when measuring began, or the time of the first value if no window is known."""
    windows = record.measurement.windows if record.measurement else ()
    first = float(column.seconds[0])
    return windows[0].start_s if windows and first <= windows[0].start_s <= column.seconds[-1] else first


def compared_trials(m: ReportData) -> Iterator[tuple[str, TrialRecord]]:
    """Yields the trials whose steps are compared, with titles; each once, if it has a breakdown."""
    wanted = [("baseline", m.baseline), (m.best_word, m.best)]
    wanted += [(f"best of {row.title}", row.record) for row in m.summary.per_loader]
    numbers: set[int] = set()
    for title, record in wanted:
        if record is not None and record.measurement is not None and record.number not in numbers:
            numbers.add(record.number)
            if record.measurement.breakdown.step_s > 0:
                yield title, record


def breakdown(m: ReportData) -> Chart | None:
    """Returns the shares of a step for the baseline, the winner and each loader kind's best."""
    # Bars are drawn upwards, and the first trial goes to the top.
    shown = list(compared_trials(m))[::-1]
    if not shown:
        return None
    names = tuple(f"{title}: {m.sweep.name_of(record)}" for title, record in shown)
    marks = []
    for title, field, _, tone, _ in PARTS:
        parts = [r.measurement.breakdown for _, r in shown if r.measurement]
        spent = [getattr(part, field) for part in parts]
        if max(spent) > 0:
            marks.append(
                Marks(
                    name=title,
                    tone=tone,
                    kind="bars",
                    x=tuple(100 * s / part.step_s for s, part in zip(spent, parts, strict=True)),
                    y=tuple(map(float, range(len(names)))),
                    texts=tuple(
                        f"{title}: {seconds(s)}, {100 * s / part.step_s:.0f}% of a step"
                        for s, part in zip(spent, parts, strict=True)
                    ),
                )
            )
    return Chart(
        key="breakdown",
        title="Where a step goes",
        alt="Shares of a step by phase; the table below has the numbers.",
        x=Axis("share of a step, %", max_value=100.0),
        y=Axis(categories=names),
        marks=tuple(marks),
        wide=True,
    )
