"""Draws how a race went: the winner's ratio to the baseline, and its rivals', after each round."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sweeper.analysis.formatting import interval, times
from sweeper.core.record import BASELINE
from sweeper.race.tally import Tally
from sweeper.report.chart import Axis, Chart, Marks
from sweeper.report.report_data import ReportData
from sweeper.results import words

MAX_RIVALS = 3
MIN_ROUNDS = 2


def race(m: ReportData) -> Chart | None:
    """Returns the chart of a race; None if there was none, or it had a single round."""
    rounds, best = m.sweep.race, m.best
    if best is None or m.baseline is None or len(rounds) < MIN_ROUNDS:
        return None
    arms = sorted({arm for one in rounds for arm in one.speeds} - {BASELINE, best.number})
    marks = [*_lines(m, best.number, "winner", with_interval=True)]
    for arm in arms[:MAX_RIVALS]:
        marks += _lines(m, arm, "good", with_interval=False)
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


def _lines(m: ReportData, arm: int, tone: str, *, with_interval: bool) -> Iterator[Marks]:
    rounds = m.sweep.race
    name = m.sweep.name_of(m.sweep.table.records[arm])
    points = []
    for count in range(1, len(rounds) + 1):
        tally = Tally.of(rounds[:count], arm)
        if tally.logs and arm in rounds[count - 1].speeds:
            points.append((float(count), math.exp(tally.mean), *map(math.exp, tally.interval())))
    if not points:
        return
    at = tuple(count for count, *_ in points)
    texts = tuple(
        f"{name} after round {count:.0f}: {times(ratio)} {interval(low, high)}"
        for count, ratio, low, high in points
    )
    yield Marks(name=name, tone=tone, kind="line", x=at, y=tuple(point[1] for point in points), texts=texts)
    if with_interval:
        for end in (2, 3):
            title = f"{name}, {words.INTERVAL}"
            y = tuple(point[end] for point in points)
            yield Marks(name=title, tone=tone, kind="line", dashed=True, x=at, y=y)
