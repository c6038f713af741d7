"""Describes the coverage of a sweep: what was left out or never tried, and what is left of the budget."""

from __future__ import annotations

from collections.abc import Iterator

from sweeper.core.config import Scalar
from sweeper.core.job import SEARCH_STAGE
from sweeper.report.report_data import ReportData
from sweeper.results.formatting import count_of, figure, value_of
from sweeper.schema import CategoricalParameter, Parameter
from sweeper.schema.neighbours import is_number
from sweeper.schema.space import acts, is_same
from sweeper.sweep.phases.preflight import preflight_lines

MAX_VALUES = 16
"""A range of at most this many values is checked value by value."""
EDGE = 0.1
"""Share of a range that may stay untried at either end without being mentioned."""


def coverage_lines(m: ReportData) -> Iterator[str]:
    """Yields a sentence for each thing that was not tried."""
    records = [record for record in m.summary.records if record.stage == SEARCH_STAGE]
    names = {name for record in records for name in record.params}
    flats = [r.config.canonical().flatten() for r in m.summary.records]
    for name, parameter in m.spec.space.items():
        if records and any(record.params for record in records) and name not in names:
            yield f"`{name}` was not searched: this machine determines its value."
            continue
        seen = [flat[name] for flat in flats if name in flat and acts(name, m.spec.space, flat)]
        if records and (missing := _coverage_gap(name, parameter, seen)):
            yield missing
    yield from preflight_lines(m.sweep.journal)
    yield from _budget(m, len(records))
    if m.spec.fix:
        fixed = ", ".join(f"{name} {value_of(value)}" for name, value in m.spec.fix.items())
        yield f"Held fixed by the specification: {fixed}."


def _coverage_gap(name: str, parameter: Parameter, seen: list[Scalar]) -> str:
    few = _values(parameter)
    if few:
        never = [value for value in few if not any(is_same(value, choice) for choice in seen)]
        return f"`{name}` was never set to {_alternatives(never)}." if never else ""
    numbers = [value for value in seen if is_number(value)]
    if isinstance(parameter, CategoricalParameter) or not numbers:
        return "" if numbers else f"`{name}` was never tried where it has an effect."
    low, high = min(numbers), max(numbers)
    width = parameter.high - parameter.low
    untried = []
    if (not parameter.log and low - parameter.low > EDGE * width) or (
        parameter.log and low > 2 * parameter.low
    ):
        untried.append(f"below {figure(low)}")
    if (not parameter.log and parameter.high - high > EDGE * width) or (
        parameter.log and 2 * high < parameter.high
    ):
        untried.append(f"above {figure(high)}")
    reach = f"(the space is {figure(parameter.low)} to {figure(parameter.high)})"
    return f"`{name}` was never tried {' or '.join(untried)} {reach}." if untried else ""


def _values(parameter: Parameter) -> tuple[Scalar, ...]:
    if isinstance(parameter, CategoricalParameter):
        return parameter.choices
    size, step = parameter.size(), parameter.step
    if size is None or size > MAX_VALUES or step is None:
        return ()
    return tuple(parameter.like(parameter.low + i * step) for i in range(size))


def _alternatives(values: list[Scalar]) -> str:
    words = [value_of(value) for value in values]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _budget(m: ReportData, num_searched: int) -> Iterator[str]:
    raised = m.sweep.journal.raised_budget()
    wanted = m.spec.search.trials if raised is None else raised
    size = m.spec.size()
    if size is not None:
        yield f"The space has {size:,} combinations (ignoring `when`); {num_searched} trials were proposed."
    if num_searched < wanted:
        yield f"{wanted - num_searched} of {wanted} searched trials were not run."
    minutes = m.spec.search.minutes
    if minutes and raised is None and m.cost.seconds < 60 * minutes:
        yield f"{minutes - m.cost.seconds / 60:.3g} of {count_of(minutes, 'minute')} were not used."
