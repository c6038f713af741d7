"""Defines tables as data: the page, Markdown and plain text show the same ones."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from sweeper.results.formatting import ABSENT


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table.

    Attributes:
        value: The value that it is sorted by; None sorts by the text, a dash last.
        tone: The tone that marks it (`sweeper.report.chart.TONES`); empty for no mark.
    """

    text: str
    value: float | None = None
    tone: str = ""

    @property
    def sort_value(self) -> float | None:
        """The value as a float; None for NaN too."""
        return None if self.value is None or math.isnan(self.value) else float(self.value)


@dataclass(frozen=True, slots=True)
class Column:
    """A column. Numbers are right-aligned; only a column that `wraps` may take several lines."""

    title: str
    number: bool = False
    wraps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table.

    Attributes:
        caption: A description in a few words.
        note: A sentence below it, or empty.
        strong: Indices of highlighted rows.
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    strong: frozenset[int] = frozenset()

    def without_empty(self) -> Table:
        """Returns the table without empty columns."""
        if not self.rows:
            return self
        kept = [
            i for i in range(len(self.columns)) if any(row[i].text not in ("", ABSENT) for row in self.rows)
        ]
        return dataclasses.replace(
            self,
            columns=tuple(self.columns[i] for i in kept),
            rows=tuple(tuple(row[i] for i in kept) for row in self.rows),
        )


def columns(*titles: str) -> tuple[Column, ...]:
    """Returns columns by their titles; `#title` has numbers, `~title` wraps."""
    return tuple(
        Column(title[title[:1] in ("#", "~") :], title.startswith("#"), title.startswith("~"))
        for title in titles
    )


def cells(*texts: Cell | str | None) -> tuple[Cell, ...]:
    """Returns a row; None is a dash."""
    return tuple(text if isinstance(text, Cell) else Cell(ABSENT if text is None else text) for text in texts)
