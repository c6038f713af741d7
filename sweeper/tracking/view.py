"""The saved comparison view of an experiment: which columns, in which order, and which charts.

MLflow keeps such a view as a tag of the experiment. The format is the interface's own and nowhere
documented (taken from MLflow 3.17), so it is best effort: with another version the plain table is
what a person sees, and the browser test says so.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

VIEW_KEY = "sweeper"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW_KEY}"

# What decides comes first; the widths are those at which no header is cut.
_FRAME = (
    ("attributes.`Run Name`", 250),
    ("runDateAndNestInfo", 125),  # "Created", with the sign for failed; it cannot be left out.
)
_FIRST = (
    ("metrics.`result/throughput`", 130),
    ("metrics.`result/x_baseline`", 130),
    ("metrics.`confirm/ratio`", 110),
    ("tags.`sweeper.stage`", 110),
    ("tags.`sweeper.outcome`", 130),
    ("tags.`sweeper.verdict`", 130),
    ("metrics.`result/val_loss`", 115),
    ("metrics.`result/epoch_seconds`", 155),
)
_PARAM_WIDTH = 95
_LETTER_WIDTH = 7.5
_SECTION = "sweeper-comparison"


def view_state(varied: tuple[str, ...]) -> dict[str, Any]:
    """Returns the view's state for a sweep in which the parameters `varied` differ."""
    widths = {name: max(_PARAM_WIDTH, round(30 + _LETTER_WIDTH * len(name))) for name in varied}
    columns = [*_FIRST, *((f"params.`{name}`", width) for name, width in widths.items())]
    placed = [*_FRAME, *columns]
    return {
        "searchFilter": "",
        "orderByKey": "metrics.`result/throughput`",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": [name for name, _ in columns],
        "columnOrder": [name for name, _ in placed],
        "columnWidths": dict(placed),
        "runsHiddenMode": "SHOW_ALL",
        "compareRunCharts": _charts(varied),
        "compareRunSections": [
            {
                "uuid": _SECTION,
                "name": "Comparison",
                "display": True,
                # Beside another chart, parallel coordinates are too narrow to read.
                "columns": 1,
                "cardHeight": 420,
                "isReordered": True,
                "deleted": False,
                "isGenerated": False,
            }
        ],
        "viewMaximized": False,
        "runListHidden": False,
        "isAccordionReordered": True,
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "groupBy": None,
        "groupsExpanded": {},
    }


def view_tag(varied: tuple[str, ...], created_ms: int) -> str:
    """Returns the value of the experiment tag `VIEW_TAG`."""
    packed = zlib.compress(json.dumps(view_state(varied), separators=(",", ":")).encode())
    state = "deflate;" + base64.b64encode(packed).decode()
    return json.dumps({"name": "Sweep", "createdAt": created_ms, "updatedAt": created_ms, "state": state})


def _charts(varied: tuple[str, ...]) -> list[dict[str, Any]]:
    def metric(name: str) -> dict[str, str]:
        return {"key": name, "type": "METRIC"}

    charts: list[dict[str, Any]] = [
        {
            "type": "PARALLEL",
            "runsCountToCompare": 100,
            "selectedParams": list(varied),
            # The last one colours the lines.
            "selectedMetrics": ["result/val_loss", "result/throughput"],
            "showAllRuns": False,
        },
        {"type": "BAR", "runsCountToCompare": 20, "metricKey": "result/throughput"},
        {"type": "BAR", "runsCountToCompare": 20, "metricKey": "confirm/ratio"},
        {
            "type": "SCATTER",
            "runsCountToCompare": 100,
            "xaxis": metric("result/throughput"),
            "yaxis": metric("result/val_loss"),
        },
    ]
    place = {"metricSectionId": _SECTION, "deleted": False, "isGenerated": False}
    return [{"uuid": f"sweeper-{number}", **chart, **place} for number, chart in enumerate(charts)]
