"""Draws trials in charts: over time, by parameter, by outcome."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from sweeper.core.config import Scalar
from sweeper.core.metrics import metric_row
from sweeper.core.record import TrialRecord
from sweeper.report.chart import MAX_TICKS, Axis, Chart, Marks, log_ticks
from sweeper.report.report_data import ReportData
from sweeper.report.trial_marks import OUTCOMES, outcome_of, pick_evenly, tone_of
from sweeper.results.formatting import figure, metric, times, value_of
from sweeper.schema import CategoricalParameter, IntParameter, Parameter
from sweeper.schema.neighbours import is_number
from sweeper.schema.space import acts

MAX_MARKS = 300
LOG_FROM = 20.0
"""Ratio of the fastest to the slowest from which the axis is logarithmic."""

SPEED = "samples/s"
JITTER, GOLDEN = 0.5, 0.618034

At = Callable[[TrialRecord], float | None]
"""A trial's position on the x axis."""


def history(m: ReportData) -> Chart | None:
    """Returns throughput by trial number, with the best so far."""
    speeds = _speeds(m)
    if not speeds:
        return None
    low = min(speeds.values())
    marks = list(_by_outcome(m, lambda record: record.number, speeds))
    failed = [r for r in m.ended if r.failure is not None]
    marks += _marks(m, "failed", failed, lambda r: r.number, dict.fromkeys((r.number for r in failed), low))
    best, steps = 0.0, []
    for record in m.ended:
        if tone_of(record) == "good" and record.number in speeds and m.has_same_work(record):
            best = max(best, speeds[record.number])
            steps.append((record.number, best))
    line = Marks(
        name="best so far",
        tone="good",
        kind="steps",
        x=tuple(float(n) for n, _ in steps),
        y=tuple(v for _, v in steps),
        texts=tuple(f"best so far after trial {n}: {figure(v)} {SPEED}" for n, v in steps),
    )
    counted = ", ".join(f"{count} {kind}" for kind, count in m.summary.counts.items()) or "none searched"
    return Chart(
        key="history",
        title="Throughput of each trial",
        alt=f"Throughput by trial number. Searched trials: {counted}.",
        x=Axis("trial"),
        y=_speed_axis(speeds.values()),
        marks=(*([line] if len(steps) > 1 else []), *marks),
        wide=True,
        note="Failed trials are shown at the bottom." if failed else "",
    )


def effects(m: ReportData) -> Iterator[Chart]:
    """Yields the throughput by value of each searched parameter, where it has an effect."""
    speeds = _speeds(m)
    flats = {r.number: r.config.canonical().flatten() for r in m.ended if r.number in speeds}
    for name, parameter in m.spec.space.items():
        values: dict[int, Scalar] = {
            number: flat[name]
            for number, flat in flats.items()
            if name in flat and acts(name, m.spec.space, flat)
        }
        if not values:
            continue
        apart = {record.number for record in (m.baseline, m.best) if record is not None}
        axis, places = _positions(parameter, values, apart)
        yield Chart(
            key=f"effect-{name}",
            title=name,
            alt=f"Throughput of the trials by {name}.",
            x=axis,
            y=_speed_axis(speeds[number] for number in values),
            marks=tuple(_by_outcome(m, _lookup(places), {n: speeds[n] for n in values})),
        )


def outcomes(m: ReportData) -> Chart | None:
    """Returns where trials failed or broke a limit, over the first two numeric parameters."""
    flats = {r.number: r.config.flatten() for r in m.ended}
    names = [
        name
        for name, parameter in m.spec.space.items()
        if _is_numeric(parameter) and len({flat.get(name) for flat in flats.values()}) > 1
    ]
    if not names or not any(tone_of(record) in ("beyond", "failed") for record in m.ended):
        return None
    first, second = names[0], next(iter(names[1:]), "")
    kinds = tuple(dict.fromkeys(map(outcome_of, m.ended)))
    heights: dict[int, float | None] = {
        r.number: _number(flats[r.number].get(second)) if second else float(kinds.index(outcome_of(r)))
        for r in m.ended
    }
    across = _lookup({number: _number(flat.get(first)) for number, flat in flats.items()})
    by = first + (f" and {second}" if second else "")
    return Chart(
        key="outcomes",
        title=f"Outcomes by {by}",
        alt=f"Where trials failed or broke a limit, by {by}.",
        x=_numeric_axis(m, first),
        y=_numeric_axis(m, second) if second else Axis(categories=kinds),
        marks=tuple(
            marks
            for tone in OUTCOMES
            for marks in _marks(m, tone, [r for r in m.ended if tone_of(r) == tone], across, heights)
        ),
        wide=True,
    )


def front(m: ReportData) -> Chart | None:
    """Returns the first two objectives of all trials, with the front; None for one objective."""
    if len(m.summary.objectives) < 2:
        return None
    first, second = m.summary.objectives[:2]
    heights = {r.number: value for r in m.ended if (value := r.metric(second)) is not None}
    numbers = {r.number for r in m.ended if r.metric(first) is not None}
    heights = {number: value for number, value in heights.items() if number in numbers}
    if not heights:
        return None
    edge = sorted((row.record for row in m.summary.front), key=lambda r: r.metric(first) or 0.0)
    line = Marks(
        name="Pareto front",
        tone="good",
        kind="line",
        x=tuple(r.metric(first) for r in edge),
        y=tuple(r.metric(second) for r in edge),
    )
    places = {r.number: r.metric(first) or 0.0 for r in m.ended if r.number in heights}
    return Chart(
        key="front",
        title="Objectives",
        alt=f"{first} against {second}; {len(edge)} trials are on the Pareto front.",
        x=wide_axis(_metric_title(first), places.values()),
        y=wide_axis(_metric_title(second), heights.values()),
        marks=(*([line] if len(edge) > 1 else []), *_by_outcome(m, lambda r: r.metric(first), heights)),
        wide=True,
    )


def _metric_title(name: str) -> str:
    return f"{name}, {metric_row(name).unit}".removesuffix(", ")


def _speeds(m: ReportData) -> dict[int, float]:
    speeds = {r.number: r.metric("throughput") for r in m.ended}
    return {number: speed for number, speed in speeds.items() if speed is not None and speed > 0}


def _by_outcome(m: ReportData, at: At, heights: Mapping[int, float]) -> Iterator[Marks]:
    """Yields the measured trials by outcome, then the baseline and the winner on top."""
    apart = {r.number: tone for r, tone in ((m.baseline, "baseline"), (m.best, "winner")) if r is not None}
    rest = [r for r in m.ended if r.number in heights and r.number not in apart]
    for tone in ("good", "beyond"):
        mine = [r for r in rest if tone_of(r) == tone]
        yield from _marks(m, tone, mine, at, heights)
    for number, tone in apart.items():
        if number in heights:
            yield from _marks(m, tone, [m.sweep.table.records[number]], at, heights)


def _marks(
    m: ReportData,
    tone: str,
    records: Sequence[TrialRecord],
    at: At,
    heights: Mapping[int, float | None],
) -> list[Marks]:
    if not records:
        return []
    chosen = pick_evenly(records, MAX_MARKS)
    name = OUTCOMES.get(tone, m.best_word if tone == "winner" else tone)
    return [
        Marks(
            name=name,
            tone=tone,
            x=tuple(at(r) for r in chosen),
            y=tuple(heights.get(r.number) for r in chosen),
            texts=tuple(_point_text(m, r) for r in chosen),
        )
    ]


def _point_text(m: ReportData, record: TrialRecord) -> str:
    speed = record.metric("throughput")
    parts = [m.sweep.name_of(record), outcome_of(record)]
    if speed is not None:
        parts.append(f"{metric('throughput', speed)}, {times(m.sweep.table.speedup(record))}")
    return " · ".join(parts)


def _speed_axis(speeds: Iterable[float]) -> Axis:
    return wide_axis(SPEED, speeds)


def wide_axis(title: str, values: Iterable[float]) -> Axis:
    """Returns an axis that is logarithmic if the largest value is many times the smallest."""
    numbers = [value for value in values if math.isfinite(value)]
    wide = bool(numbers) and min(numbers) > 0 and max(numbers) / min(numbers) >= LOG_FROM
    return Axis(title, log=wide, ticks=log_ticks(numbers) if wide else ())


def _positions(
    parameter: Parameter, values: Mapping[int, Scalar], apart: Collection[int]
) -> tuple[Axis, dict[int, float | None]]:
    """Returns the axis of a parameter, and each trial's position on it, by its number.

    Trials of a category are spread evenly, by the golden ratio, so that many stay distinguishable;
    those in `apart` stay in the middle.
    """
    numbers = {
        number: position for number, value in values.items() if (position := _number(value)) is not None
    }
    if not isinstance(parameter, CategoricalParameter) and len(numbers) == len(values):
        return _axis("", parameter, numbers.values()), dict(numbers)
    choices = parameter.choices if isinstance(parameter, CategoricalParameter) else ()
    names = list(dict.fromkeys(map(value_of, [*choices, *values.values()])))
    spread = JITTER if len(values) > len(names) else 0.0
    return Axis(categories=tuple(names)), {
        number: names.index(value_of(value)) + (number not in apart) * spread * (number * GOLDEN % 1 - 0.5)
        for number, value in values.items()
    }


def _axis(title: str, parameter: Parameter, values: Collection[float]) -> Axis:
    whole = isinstance(parameter, IntParameter)
    if not isinstance(parameter, CategoricalParameter) and parameter.log and min(values, default=0) > 0:
        return Axis(title, log=True, ticks=log_ticks(values, doubling=whole))
    if whole and values and max(values) - min(values) <= MAX_TICKS:
        return Axis(title, ticks=tuple(map(float, range(int(min(values)), int(max(values)) + 1))))
    return Axis(title)


def _numeric_axis(m: ReportData, name: str) -> Axis:
    values = [_number(record.config.flatten().get(name)) for record in m.ended]
    return _axis(name, m.spec.space[name], [value for value in values if value is not None])


def _is_numeric(parameter: Parameter) -> bool:
    return not isinstance(parameter, CategoricalParameter) or all(map(is_number, parameter.choices))


def _number(value: Scalar) -> float | None:
    return float(value) if is_number(value) and math.isfinite(value) else None


def _lookup(places: Mapping[int, float | None]) -> At:
    return lambda record: places.get(record.number)
