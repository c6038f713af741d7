"""Draws the winner beside the baseline: how its race went, and its loss over training time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from sweeper.core.record import BASELINE
from sweeper.race.tally import Tally
from sweeper.report.chart import Axis, Chart, Marks
from sweeper.report.report_data import ReportData
from sweeper.report.trial_charts import wide_axis
from sweeper.results import words
from sweeper.results.formatting import interval, loss, seconds, times
from sweeper.results.numbers.projection import Curve
from sweeper.results.numbers.time_to_loss import band

MAX_RIVALS = 3
MIN_ROUNDS = 2


def race(m: ReportData) -> Chart | None:
    """Returns the ratios to the baseline after each round; None if there was no race, or a single round."""
    rounds, best = m.sweep.race, m.best
    if best is None or m.baseline is None or len(rounds) < MIN_ROUNDS:
        return None
    arms = sorted({arm for one in rounds for arm in one.speeds} - {BASELINE, best.number})
    marks = [*_ratios(m, best.number, "winner", with_interval=True)]
    for arm in arms[:MAX_RIVALS]:
        marks += _ratios(m, arm, "good", with_interval=False)
    if not marks:
        return None
    last = max(at for line in marks for at in line.x if at is not None)
    marks.append(Marks(name="baseline", tone="baseline", kind="line", x=(1.0, last), y=(1.0, 1.0)))
    return Chart(
        key="race",
        title="Ratio to the baseline so far",
        alt=f"Speed over the baseline's after each of {len(rounds)} rounds, with its {words.INTERVAL}.",
        x=Axis("rounds", ticks=tuple(map(float, range(1, len(rounds) + 1))) if len(rounds) < 10 else ()),
        y=Axis("times as fast"),
        marks=tuple(marks),
        wide=True,
        note="A round has a new process of each. What is clearly slower is not continued.",
    )


def _ratios(m: ReportData, arm: int, tone: str, *, with_interval: bool) -> Iterator[Marks]:
    rounds = m.sweep.race
    name = m.sweep.name_of(m.sweep.table.records[arm])
    points = []
    for count in range(1, len(rounds) + 1):
        tally = Tally.of(rounds[:count], arm)
        if tally.logs and arm in rounds[count - 1].speeds:
            points.append((float(count), math.exp(tally.mean), *map(math.exp, tally.interval())))
    texts = tuple(
        f"{name} after round {count:.0f}: {times(ratio)} {interval(low, high)}"
        for count, ratio, low, high in points
    )
    return _lines(name, tone, points, texts, with_interval=with_interval)


def learning_curves(m: ReportData) -> Chart | None:
    """Returns the learning curves of the baseline and the winner; None if they were not measured."""
    comparison = m.summary.time_to_loss
    if comparison is None or m.baseline is None or m.best is None:
        return None
    sides = (("baseline", m.baseline, comparison.baseline), ("winner", m.best, comparison.winner))
    marks = [
        mark
        for name, record, curves in sides
        if (speed := m.summary.throughput_of(record))
        for mark in _losses(name, curves, speed)
    ]
    if not marks:
        # Earlier versions did not store the curves.
        return None
    return Chart(
        key="learning",
        title="Loss over training time",
        alt="Validation loss of the baseline and the winner over training time, down to"
        f" {loss(comparison.loss)}.",
        x=wide_axis("training time, s", (at for line in marks for at in line.x if at is not None)),
        y=Axis("validation loss"),
        marks=tuple(marks),
        wide=True,
        note=f"Means over {len(comparison.samples)} seeds. The winner's runs end at the baseline's loss.",
    )


def _losses(name: str, curves: Sequence[Curve], speed: float) -> Iterator[Marks]:
    points = [(samples / speed, *levels) for samples, *levels in band(curves)]
    texts = tuple(f"{name} after {seconds(at)}: {loss(mean)}" for at, mean, _, _ in points)
    return _lines(name, name, points, texts, with_interval=True)


def _lines(
    name: str, tone: str, points: Sequence[tuple[float, ...]], texts: tuple[str, ...], *, with_interval: bool
) -> Iterator[Marks]:
    """Yields the line of some points (place, mean, low, high), and the ends of their intervals, dashed."""
    if not points:
        return
    at, mean, *ends = zip(*points, strict=True)
    yield Marks(name=name, tone=tone, kind="line", x=at, y=mean, texts=texts)
    for end in ends if with_interval else ():
        yield Marks(name=f"{name}, {words.INTERVAL}", tone=tone, kind="line", dashed=True, x=at, y=end)
