"""Converts charts to plotly.js figures: plain data with named colours."""

from __future__ import annotations

import html
from typing import Any

from sweeper.report.chart import TONES, Axis, Chart, Marks, axis_label
from sweeper.report.text import make_printable

HEIGHT, TALL, ROW = 230, 320, 48
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif"


def plotly(chart: Chart) -> dict[str, Any]:
    """Returns `{data, layout}`; a colour is a name that the page fills in (`tone:good`, `ink`)."""
    bars = chart.rows
    across, up = chart.axes
    layout: dict[str, Any] = {
        "height": 96 + ROW * bars if bars else TALL if chart.wide else HEIGHT,
        "margin": {"l": 8, "r": 12, "t": 8, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 12, "color": "ink"},
        "showlegend": False,
        "barmode": "stack",
        "bargap": 0.45,
        "hovermode": "closest",
        "hoverlabel": {"font": {"family": FONT, "size": 12}, "align": "left"},
        "dragmode": False,
        "xaxis": _axis(across),
        "yaxis": _axis(up),
        "shapes": [],
    }
    if bars:
        # Names are above their bars: next to them they would fill a phone's width.
        layout["yaxis"] |= {"showticklabels": False, "showgrid": False, "zeroline": False}
        layout["annotations"] = [
            {
                "text": name,
                "x": 0,
                "xanchor": "left",
                "xref": "paper",
                "y": place,
                "yshift": 20,
                "showarrow": False,
                "align": "left",
                "font": {"size": 12, "color": "ink"},
            }
            for place, name in enumerate(map(_text, chart.y.categories))
        ]
    if chart.upright is not None:
        layout["shapes"] = [
            {
                "type": "line",
                "x0": chart.upright,
                "x1": chart.upright,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"color": "line", "width": 1},
            }
        ]
    return {"data": [_trace(marks) for marks in chart.marks], "layout": layout}


def _axis(axis: Axis) -> dict[str, Any]:
    layout: dict[str, Any] = {
        "title": {"text": _text(axis.title), "font": {"size": 12, "color": "faint"}, "standoff": 8},
        "automargin": True,
        "fixedrange": True,
        "gridcolor": "line",
        "zerolinecolor": "line",
        "tickfont": {"size": 11, "color": "faint"},
        "nticks": 6,
    }
    if axis.categories:
        labels = [_text(category) for category in axis.categories]
        layout |= {"tickvals": list(range(len(labels))), "ticktext": labels, "showgrid": False}
        layout |= {"range": [-0.5, len(labels) - 0.5], "zeroline": False}
    elif axis.log:
        layout["type"] = "log"
    else:
        layout |= {
            "type": "linear",
            "rangemode": "tozero" if axis.max_value else "normal",
            "separatethousands": True,
        }
        if axis.max_value:
            layout["range"] = [0, axis.max_value]
    if axis.ticks:
        layout |= {"tickvals": list(axis.ticks), "ticktext": [axis_label(tick) for tick in axis.ticks]}
    return layout


def _trace(marks: Marks) -> dict[str, Any]:
    tone = TONES[marks.tone]
    color = f"tone:{marks.tone}"
    common = {
        "name": _text(marks.name),
        "x": list(marks.x),
        "y": list(marks.y),
        "hovertext": [_text(text) for text in marks.texts],
        "hoverinfo": "text" if marks.texts else "y",
    }
    if marks.kind == "bars":
        return {**common, "type": "bar", "orientation": "h", "width": 0.4, "marker": {"color": color}}
    if marks.kind in ("line", "steps"):
        line = {"color": color, "width": 1.6, "dash": "dot" if marks.dashed else "solid"}
        line["shape"] = "hv" if marks.kind == "steps" else "linear"
        return {**common, "type": "scatter", "mode": "lines", "line": line, "connectgaps": False}
    large = marks.tone in ("winner", "baseline")
    marker = {
        "color": color,
        "symbol": tone.plotly,
        "size": 13 if large else 7,
        "opacity": 1 if large else 0.75,
        "line": {"color": color, "width": 1.6 if tone.plotly.endswith("open") else 0},
    }
    return {**common, "type": "scatter", "mode": "markers", "marker": marker, "cliponaxis": False}


def _text(text: str) -> str:
    """Escapes `text` for plotly, which interprets some markup and entities."""
    return html.escape(make_printable(text), quote=False)
