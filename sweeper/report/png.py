"""Draws the main charts as PNG files for slides and trackers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sweeper.errors import UserError
from sweeper.report import trial_charts
from sweeper.report.chart import TONES, Axis, Chart, Marks, axis_label
from sweeper.report.report_data import ReportData
from sweeper.report.text import make_printable
from sweeper.report.timeline_charts import breakdown, timelines

INK, FAINT, LINE = "#16191d", "#5a6270", "#dfe3e8"
DPI = 110
TOP, BETWEEN, ROW = 0.35, 0.8, 0.55
"""Inches above the panels, between two rows of panels, and for a bar."""
MAX_LETTERS = 44


def pngs(m: ReportData, folder: Path) -> list[Path]:
    """Writes the figures into `folder`, which is created, and returns their paths.

    The figures are `throughput.png`, `effects.png`, `timelines.png` and `breakdown.png`; empty ones
    are left out.

    Raises:
        UserError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise UserError(
            "PNG figures need matplotlib, which is not installed."
            " Install it with `pip install 'sweeper-torch[figures]'`."
        ) from None
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, shown_charts in _groups(m):
        # Figure, not pyplot: no window, no global state, and no backend is chosen for others.
        path = folder / f"{name}.png"
        temporary = folder / f".{name}.tmp.png"
        with warnings.catch_warnings():
            # matplotlib warns about letters that its font lacks, and draws them as boxes.
            warnings.simplefilter("ignore", UserWarning)
            _draw_panels(Figure, shown_charts).savefig(temporary, dpi=DPI, facecolor="white")
        temporary.replace(path)
        written.append(path)
    return written


def _groups(m: ReportData) -> Iterator[tuple[str, Sequence[Chart]]]:
    groups: dict[str, list[Chart | None]] = {
        "throughput": [trial_charts.history(m)],
        "effects": [*trial_charts.effects(m)],
        "timelines": [*timelines(m)],
        "breakdown": [breakdown(m)],
    }
    for name, group in groups.items():
        charts = [chart for chart in group if chart is not None]
        if charts:
            yield name, charts


def _draw_panels(figure: Any, group: Sequence[Chart]) -> Any:
    """Draws panels at fixed places; a layout that measures texts would draw them three times."""
    across = min(3, len(group))
    down = math.ceil(len(group) / across)
    panel = 0.5 + ROW * group[0].rows if group[0].rows else 2.9 if across == 1 else 1.9
    width, height = (8.4, 4.0 * across)[across > 2], TOP + down * (panel + BETWEEN)
    fig = figure(figsize=(width, height))
    places = fig.subplots(down, across, squeeze=False).flatten()
    fig.subplots_adjust(
        left=0.75 / width,
        right=1 - 0.2 / width,
        top=1 - (TOP + 0.25) / height,
        bottom=0.55 / height,
        hspace=BETWEEN / panel,
        wspace=0.26,
    )
    for place, chart in zip(places, group, strict=False):
        _draw(place, chart)
    for place in places[len(group) :]:
        place.set_axis_off()
    labels: dict[str, Any] = {}
    for place in places:
        labels |= {label: handle for handle, label in zip(*place.get_legend_handles_labels(), strict=True)}
    if len(labels) > 1:
        columns = min(len(labels), 7)
        fig.legend([*labels.values()], [*labels], loc="upper left", ncols=columns, frameon=False, fontsize=8)
    return fig


def _draw(place: Any, chart: Chart) -> None:
    place.set_title(_text(chart.title), fontsize=9, loc="left", color=INK)
    for marks in chart.marks:
        _marks(place, chart, marks)
    for side in ("top", "right"):
        place.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        place.spines[side].set_color(LINE)
    place.tick_params(labelsize=8, colors=FAINT, length=0)
    place.grid(True, axis="x" if chart.rows else "both", color=LINE, linewidth=0.6)
    place.set_axisbelow(True)
    across, up = chart.axes
    place.set_xlabel(_text(across.title), fontsize=8, color=FAINT)
    place.set_ylabel(_text(up.title), fontsize=8, color=FAINT)
    _scale(place, "x", across)
    _scale(place, "y", up)
    if chart.rows:
        # The names are above their bars, as on the page.
        place.set_yticks([])
        for i, name in enumerate(chart.y.categories):
            place.text(0, i + 0.33, _text(name), fontsize=8, color=INK)
    if chart.upright is not None:
        place.axvline(chart.upright, color=LINE, linewidth=1)


def _scale(place: Any, which: str, axis: Axis) -> None:
    line = getattr(place, f"{which}axis")
    limits = getattr(place, f"set_{which}lim")
    if axis.log:
        getattr(place, f"set_{which}scale")("log")
    elif not axis.categories:
        line.set_major_formatter(lambda value, _: axis_label(value))
    if axis.categories:
        room = max(6, MAX_LETTERS // len(axis.categories))
        line.set_ticks(range(len(axis.categories)), [_text(category, room) for category in axis.categories])
        limits(-0.6, len(axis.categories) - 0.4)
    elif axis.max_value:
        limits(0, axis.max_value)
    if axis.ticks:
        line.set_ticks(axis.ticks, [axis_label(tick) for tick in axis.ticks])
        line.set_ticks([], minor=True)


def _marks(place: Any, chart: Chart, marks: Marks) -> None:
    tone = TONES[marks.tone]
    x, y = _numbers(marks.x), _numbers(marks.y)
    label = _text(marks.name)
    if marks.kind == "bars":
        lefts = [
            sum(width for bars in _bars_before(chart, marks) for width, at in bars if at == mine)
            for mine in y
        ]
        place.barh(y, x, left=lefts, height=0.42, color=tone.light, label=label)
    elif marks.kind in ("line", "steps"):
        style = "dotted" if marks.dashed else "solid"
        drawn = "steps-post" if marks.kind == "steps" else "default"
        place.plot(x, y, color=tone.light, linewidth=1.3, linestyle=style, drawstyle=drawn, label=label)
    else:
        large = marks.tone in ("winner", "baseline")
        hollow = tone.plotly.endswith("open") and tone.plain != "x"
        place.scatter(
            x,
            y,
            s=70 if large else 16,
            marker=tone.plain,
            linewidths=1.0,
            alpha=1.0 if large else 0.75,
            facecolors="none" if hollow else tone.light,
            label=label,
            zorder=4 if large else 3,
            **({"edgecolors": tone.light} if tone.plain != "x" else {}),
        )


def _bars_before(chart: Chart, marks: Marks) -> Iterator[list[tuple[float, float]]]:
    """Yields the bars to the left of `marks`: lengths with their places."""
    for bars in chart.marks:
        if bars is marks:
            return
        yield list(zip(_numbers(bars.x), _numbers(bars.y), strict=True))


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else float(value) for value in values]


def _text(text: str, max_letters: int = MAX_LETTERS) -> str:
    """Escapes `text` for matplotlib and shortens it to `max_letters` letters."""
    plain = make_printable(text)
    plain = (plain if len(plain) <= max_letters else plain[: max_letters - 1] + "…").replace("$", r"\$")
    # Matplotlib leaves labels that begin with an underscore out of a legend.
    return "\u2009" + plain if plain.startswith("_") else plain
