"""Defines charts as data, which both the page and the PNG writer draw."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True)
class Tone:
    """The look of one kind of mark: colour and shape.

    Attributes:
        light: Colour on a light background; `dark` is the one on a dark background. The contrast is at
            least 3:1.
        glyph: Symbol in a legend.
        plotly: Name of the marker in plotly; `plain` is its name in matplotlib.
    """

    light: str
    dark: str
    glyph: str = "■"
    plotly: str = "circle"
    plain: str = "o"


TONES: Mapping[str, Tone] = {
    "good": Tone("#0a66c2", "#6db3ff", "●"),
    "winner": Tone("#0a66c2", "#6db3ff", "★", "star", "*"),
    "baseline": Tone("#5f6672", "#a7afbd", "□", "square-open", "s"),
    "beyond": Tone("#a35c00", "#e8a33d", "◇", "diamond-open", "D"),
    "failed": Tone("#c02b2b", "#ff7b72", "✕", "x-thin-open", "x"),
    "data": Tone("#c4620a", "#f0954a"),
    "copy": Tone("#9a7500", "#d9b340"),
    "forward": Tone("#0a66c2", "#6db3ff"),
    "backward": Tone("#3f86cf", "#4285c8"),
    "optimiser": Tone("#76a7d8", "#336394"),
    "graph": Tone("#2c6f8f", "#5aa9c9"),
    "gap": Tone("#858c98", "#7d8592"),
}
"""Every mark of every figure; no two marks of a figure differ in colour alone."""

Kind = Literal["points", "line", "steps", "bars"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Marks of one kind.

    Attributes:
        x: Numbers, like `y`; a category is given by its index. For bars, `x` has the lengths.
        texts: Hover text of each mark.
    """

    name: str
    tone: str
    x: tuple[float | None, ...]
    y: tuple[float | None, ...]
    kind: Kind = "points"
    dashed: bool = False
    texts: tuple[str, ...] = ()

    @property
    def glyph(self) -> str:
        """Symbol in a legend."""
        if self.kind in ("line", "steps"):
            return "┅" if self.dashed else "━"
        return TONES[self.tone].glyph


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis.

    Attributes:
        categories: Labels at 0, 1, 2 and so on; empty for numbers.
        ticks: Positions of labels; empty for automatic ones.
        max_value: Upper end of an axis that begins at 0; None for an automatic range.
    """

    title: str = ""
    log: bool = False
    categories: tuple[str, ...] = ()
    ticks: tuple[float, ...] = ()
    max_value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A figure.

    Attributes:
        key: Name of the chart and of its file.
        alt: Alternative text.
        upright: The `x` of a thin vertical line; None for no line.
        wide: Whether it takes the width of the page.
        note: A sentence below it.
    """

    key: str
    title: str
    alt: str
    x: Axis
    y: Axis
    marks: tuple[Marks, ...]
    upright: float | None = None
    wide: bool = False
    note: str = ""

    @property
    def axes(self) -> tuple[Axis, Axis]:
        """The two axes as they are drawn: one with a single value says so, and has only that tick."""
        return (
            _axis_of(self.x, (marks.x for marks in self.marks)),
            _axis_of(self.y, (marks.y for marks in self.marks)),
        )

    @property
    def rows(self) -> int:
        """Number of rows of bars; 0 without bars."""
        return len(self.y.categories) if any(marks.kind == "bars" for marks in self.marks) else 0


def _axis_of(axis: Axis, given: Iterable[Sequence[float | None]]) -> Axis:
    """Returns an axis for some values; automatic ticks around a single one would suggest a range."""
    values = {value for some in given for value in some if value is not None}
    if axis.categories or axis.ticks or axis.max_value is not None or len(values) != 1:
        return axis
    return replace(axis, title=f"{axis.title} (one value)".strip(), log=False, ticks=tuple(values))


def kinds_of_marks(charts: Iterable[Chart]) -> dict[tuple[str, str], str]:
    """Returns the symbol of each kind of mark, by its name and tone."""
    return {(marks.name, marks.tone): marks.glyph for chart in charts for marks in chart.marks}


def axis_label(value: float) -> str:
    """Returns a number as an axis label: `250`, `20k`, `1.5M`."""
    for min_value, size, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= min_value:
            return f"{value / size:.3g}{letter}"
    return f"{value:.4g}"


def log_ticks(values: Iterable[float], *, doubling: bool = False) -> tuple[float, ...]:
    """Returns ticks of a logarithmic axis: powers of ten (also 2 and 5 times, in a short range).

    Args:
        doubling: Whether to use powers of two, as for batch sizes.
    """
    numbers = [value for value in values if value > 0 and math.isfinite(value)]
    if not numbers:
        return ()
    low, high = min(numbers), max(numbers)
    if doubling:
        first, last = math.floor(math.log2(low)), math.ceil(math.log2(high))
        step = max(1, math.ceil((last - first) / MAX_TICKS))
        return _ticks_near([2.0**power for power in range(first, last + 1, step)], low, high)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    leading = (1.0, 2.0, 5.0) if last - first <= 2 else (1.0, 3.0) if last - first == 3 else (1.0,)
    return _ticks_near(
        [lead * 10.0**power for power in range(first, last + 1) for lead in leading], low, high
    )


def _ticks_near(ticks: Sequence[float], low: float, high: float) -> tuple[float, ...]:
    """Returns the ticks within the range or just outside; all if fewer than two are left."""
    near = tuple(tick for tick in ticks if low / MARGIN <= tick <= high * MARGIN)
    return near if len(near) > 1 else tuple(ticks)


MARGIN = 1.5
MAX_TICKS = 7
