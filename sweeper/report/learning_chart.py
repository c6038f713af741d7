"""Draws the loss over training time, until the winner has reached the baseline's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sweeper.analysis.formatting import loss, seconds
from sweeper.analysis.projection import Curve
from sweeper.analysis.time_to_loss import band
from sweeper.report.chart import Axis, Chart, Marks
from sweeper.report.report_data import ReportData
from sweeper.report.trial_charts import wide_axis
from sweeper.results import words


def learning(m: ReportData) -> Chart | None:
    """Returns the learning curves of the baseline and the winner; None if they were not measured."""
    comparison = m.summary.time_to_loss
    if comparison is None or m.baseline is None or m.best is None:
        return None
    sides = (("baseline", m.baseline, comparison.baseline), ("winner", m.best, comparison.winner))
    marks = [
        mark
        for name, record, curves in sides
        if (speed := m.summary.throughput_of(record))
        for mark in _lines(name, curves, speed)
    ]
    if not marks:
        # Earlier versions did not store the curves.
        return None
    return Chart(
        key="learning",
        title="Loss over training time",
        alt="Validation loss of the baseline and the winner over training time, down to"
        f" {loss(comparison.loss)}.",
        x=wide_axis("training time, s", (at for each in marks for at in each.x if at is not None)),
        y=Axis("validation loss"),
        marks=tuple(marks),
        wide=True,
        note=f"Means over {len(comparison.samples)} seeds. The winner's runs end at the baseline's loss.",
    )


def _lines(name: str, curves: Sequence[Curve], speed: float) -> Iterator[Marks]:
    points = [(samples / speed, *levels) for samples, *levels in band(curves)]
    times = tuple(at for at, *_ in points)
    if not points:
        return
    texts = tuple(f"{name} after {seconds(at)}: {loss(mean)}" for at, mean, _, _ in points)
    yield Marks(
        name=name, tone=name, kind="line", x=times, y=tuple(mean for _, mean, _, _ in points), texts=texts
    )
    for end in (2, 3):
        yield Marks(
            name=f"{name}, {words.INTERVAL}",
            tone=name,
            kind="line",
            dashed=True,
            x=times,
            y=tuple(point[end] for point in points),
        )
