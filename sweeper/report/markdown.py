"""Writes the report as Markdown for a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from sweeper.report import decision, trial_tables
from sweeper.report.before_after import before_and_after, changes
from sweeper.report.report_data import ReportData
from sweeper.report.table import Table
from sweeper.report.text import as_markdown, make_printable
from sweeper.results import words

MAX_ROWS = 12


def markdown(m: ReportData) -> str:
    """Returns the report, in about 60 lines at most."""
    return "\n".join(_lines(m)) + "\n"


def _lines(m: ReportData) -> Iterator[str]:
    yield f"## {as_markdown(m.summary.name)}: {as_markdown(words.headline(m.summary, m.decision))}"
    yield ""
    for fact in (*decision.facts(m), *decision.costs(m)):
        note = f" ({as_markdown(fact.note)})" if fact.note else ""
        yield f"- {as_markdown(fact.title)}: **{as_markdown(fact.value)}**{note}"
    warnings = list(decision.warnings(m))
    if warnings:
        yield ""
        yield from (f"> {as_markdown(warning)}  " for warning in warnings)
    for table in (changes(m), before_and_after(m), decision.verdicts(m), *trial_tables.best_of(m)):
        if table is not None and table.rows:
            yield ""
            yield from _table(table)
    yield ""
    yield "```sh"
    yield from (f"{make_printable(command)}  # {what}" for what, command in decision.commands(m))
    yield "```"
    yield ""
    yield f"Ran on {as_markdown(m.summary.device)}; {sum(m.summary.counts.values())} searched trials."


def _table(table: Table) -> Iterator[str]:
    note = f" ({as_markdown(table.note)})" if table.note else ""
    yield f"**{as_markdown(table.caption)}**{note}"
    yield ""
    yield f"| {' | '.join(as_markdown(column.title) or ' ' for column in table.columns)} |"
    yield f"|{'|'.join('--:' if column.number else ':--' for column in table.columns)}|"
    for i, row in enumerate(table.rows[:MAX_ROWS]):
        texts = [as_markdown(cell.text) or " " for cell in row]
        if i in table.strong:
            texts = [f"**{text}**" if text.strip() else text for text in texts]
        yield f"| {' | '.join(texts)} |"
    if len(table.rows) > MAX_ROWS:
        yield ""
        yield f"and {len(table.rows) - MAX_ROWS} more."
