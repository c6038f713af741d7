"""Builds the HTML blocks of the page: tables, figures, lists of facts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from sweeper.report.chart import TONES, Chart
from sweeper.report.decision import Fact
from sweeper.report.table import Cell, Column, Table
from sweeper.report.text import Html, as_html, element, join


def table_block(table: Table | None, *, key: str = "", sortable: bool = False) -> Html:
    """Returns a table that scrolls independently of the page, also by keyboard; empty for None."""
    if table is None:
        return Html("")
    head = element("tr", *(_head(column, sortable) for column in table.columns))
    rows = (
        element("tr", *_row(row, table.columns), class_="strong" if i in table.strong else None)
        for i, row in enumerate(table.rows)
    )
    made = element(
        "table",
        element("caption", table.caption),
        element("thead", head) if any(column.title for column in table.columns) else None,
        element("tbody", *rows),
        id=key or None,
        class_="sortable" if sortable else None,
    )
    scroll = element("div", made, class_="scroll", role="region", tabindex=0, aria_label=table.caption)
    return join(scroll, element("p", table.note, class_="note") if table.note else "")


def _head(column: Column, sortable: bool) -> Html:
    inner = element("button", column.title, type="button") if sortable else column.title
    return element("th", inner, scope="col", class_="number" if column.number else None)


def _row(row: Sequence[Cell], columns: Sequence[Column]) -> Iterator[Html]:
    for i, (cell, column) in enumerate(zip(row, columns, strict=True)):
        inner = join(_glyph(cell.tone) if cell.tone else None, words(cell.text))
        yield element(
            "td" if i or len(row) == 1 else "th",
            inner,
            scope=None if i or len(row) == 1 else "row",
            class_="number" if column.number else "wraps" if column.wraps else None,
            data_value=None if cell.value is None or math.isnan(cell.value) else float(cell.value),
        )


def _glyph(tone: str) -> Html:
    return element("span", TONES[tone].glyph + " ", class_=f"tone-{tone}", aria_hidden="true")


def chart_block(chart: Chart | None) -> Html:
    """Returns the place of a figure, which the page's script fills; empty for None."""
    if chart is None:
        return Html("")
    return element(
        "figure",
        element("figcaption", chart.title),
        legend(chart) if chart.wide else None,
        element("div", class_="chart", data_chart=chart.key, role="img", aria_label=chart.alt),
        element("p", chart.note, class_="note") if chart.note else None,
    )


def legend(*charts: Chart) -> Html | None:
    """Returns the meaning of each mark, once; None if there is only one kind."""
    kinds = {
        (marks.name, marks.tone): "┅" if marks.dashed else "━" if marks.kind in ("line", "steps") else ""
        for chart in charts
        for marks in chart.marks
    }
    if len(kinds) < 2:
        return None
    items = (
        element(
            "li",
            element("span", f"{glyph or TONES[tone].glyph} ", class_=f"tone-{tone}", aria_hidden="true"),
            name,
        )
        for (name, tone), glyph in kinds.items()
    )
    return element("ul", *items, class_="legend", aria_label="Legend")


def facts_block(facts: Iterable[Fact], kind: str = "facts") -> Html:
    """Returns headline figures."""
    return element(
        "dl",
        *(
            element(
                "div",
                element("dt", fact.title),
                element("dd", fact.value, class_="value"),
                element("dd", fact.note, class_="note") if fact.note else None,
            )
            for fact in facts
        ),
        class_=kind,
    )


def commands_block(commands: Iterable[tuple[str, str]]) -> Html:
    """Returns commands to copy, each below a comment on what it does."""
    lines = (part for what, command in commands for part in (_comment(what), as_html(command)))
    # The line ends are ours; those in a name have become spaces.
    return element("pre", element("code", Html("\n".join(lines))), class_="commands", tabindex=0)


def _comment(text: str) -> Html:
    return element("span", f"# {text}", class_="what")


def bullets(sentences: Iterable[str], kind: str | None = None, label: str | None = None) -> Html:
    """Returns sentences as a list; empty if there are none."""
    items = [element("li", words(sentence)) for sentence in sentences]
    return element("ul", *items, class_=kind, aria_label=label) if items else Html("")


def words(text: str) -> Html:
    """Returns a sentence with text between backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return join(text)
    return join(*(element("code", part) if i % 2 else part for i, part in enumerate(parts)))
