"""Builds the saved comparison view of an experiment: its columns, their order and its charts.

MLflow stores such a view as a tag of the experiment. The format is undocumented (taken from MLflow
3.17), so it is best effort: another version may show the plain table, which the browser test
reports.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

from sweeper.tracking.tracker import SweepInfo

VIEW_KEY = "sweeper"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW_KEY}"

_NAME = ("attributes.`Run Name`", 220)
_CREATED = ("runDateAndNestInfo", 45)  # Marks failed runs; also shows an age that nobody needs.
_SPEED = "result/throughput"
_LOSS = "result/val_loss"
# From each group, the first metric that the sweep has. At these widths no header is truncated.
_METRICS = (
    (("epoch_seconds", 160),),
    (("throughput", 150),),
    (("speedup", 135),),
    (("race/ratio", 110),),
    (("val_loss", 115), ("train/loss", 115)),
    (("gpu_util_pct", 150), ("gpu_busy_pct", 155), ("cpu_util_pct", 150)),
    (("gpu_mem_peak_gib", 190), ("host_mem_peak_gib", 190)),
)
_ALWAYS = ("throughput", "speedup", "race/ratio")
_TAGS = (("verdict", 140), ("stage", 110), ("outcome", 130))
_SERIES = ("gpu_util_pct", "gpu_power_w", "cpu_util_pct")
_PARAM_WIDTH = 95
_REPORTED_WIDTH, _MAX_REPORTED = 150, 2
_LETTER_WIDTH = 7.5
_MAX_AXES = 10
_COMPARISON, _CURVES = "sweeper-comparison", "sweeper-series"


def view_state(sweep: SweepInfo) -> dict[str, Any]:
    """Returns the view's state. It cannot pin the baseline: the UI ignores pins in a saved view."""
    picks = (
        next((metric for metric in choice if _has_metric(sweep, metric[0])), None) for choice in _METRICS
    )
    reported = [
        (name, _REPORTED_WIDTH) for name in sweep.metrics if name.startswith("val_") and name != "val_loss"
    ]
    metrics = [
        (f"metrics.`{name if '/' in name else f'result/{name}'}`", width)
        for name, width in (*(pick for pick in picks if pick is not None), *reported[:_MAX_REPORTED])
    ]
    tags = [(f"tags.`sweeper.{name}`", width) for name, width in _TAGS]
    params = [
        (f"params.`{name}`", max(_PARAM_WIDTH, round(30 + _LETTER_WIDTH * len(name))))
        for name in sweep.varied
    ]
    columns = [*metrics, *tags, *params]
    placed = [_NAME, *columns, _CREATED]
    return {
        "searchFilter": "",
        "orderByKey": f"metrics.`{_SPEED}`",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": [name for name, _ in columns],
        "columnOrder": [name for name, _ in placed],
        "columnWidths": dict(placed),
        "runsHiddenMode": "SHOW_ALL",
        "compareRunCharts": _charts(sweep),
        # Next to another chart, parallel coordinates are too narrow to read.
        "compareRunSections": [_section(_COMPARISON, "Comparison", 1), _section(_CURVES, "Series", 2)],
        "viewMaximized": False,
        "runListHidden": False,
        "isAccordionReordered": True,
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "groupBy": None,
        "groupsExpanded": {},
    }


def view_tag(sweep: SweepInfo, created_ms: int) -> str:
    """Returns the value of the experiment tag `VIEW_TAG`."""
    packed = zlib.compress(json.dumps(view_state(sweep), separators=(",", ":")).encode())
    state = "deflate;" + base64.b64encode(packed).decode()
    return json.dumps({"name": "Sweep", "createdAt": created_ms, "updatedAt": created_ms, "state": state})


def _has_metric(sweep: SweepInfo, name: str) -> bool:
    return name in _ALWAYS or name in sweep.metrics or (name == "train/loss" and sweep.is_recorded)


def _section(uuid: str, name: str, columns: int) -> dict[str, Any]:
    return {
        "uuid": uuid,
        "name": name,
        "display": True,
        "columns": columns,
        "cardHeight": 420,
        "isReordered": True,
        "deleted": False,
        "isGenerated": False,
    }


def _charts(sweep: SweepInfo) -> list[dict[str, Any]]:
    axes = list(sweep.searched or sweep.varied)[:_MAX_AXES]
    charts: list[tuple[str, dict[str, Any]]] = [
        (
            _COMPARISON,
            {
                "type": "PARALLEL",
                "runsCountToCompare": 100,
                "selectedParams": axes,
                # The last metric colours the lines. Adding a loss would hide the runs that have none.
                "selectedMetrics": [_SPEED],
                "showAllRuns": False,
            },
        ),
        (_COMPARISON, {"type": "BAR", "runsCountToCompare": 20, "metricKey": _SPEED}),
        (_COMPARISON, {"type": "BAR", "runsCountToCompare": 20, "metricKey": "race/ratio"}),
    ]
    if _has_metric(sweep, "val_loss"):
        scatter = {
            "type": "SCATTER",
            "runsCountToCompare": 100,
            "xaxis": {"key": _SPEED, "type": "METRIC"},
            "yaxis": {"key": _LOSS, "type": "METRIC"},
        }
        charts.append((_COMPARISON, scatter))
    trained = ("train/loss", "train/throughput") if sweep.is_recorded else ("train/throughput",)
    charts += [(_CURVES, _line(name, "step")) for name in trained]
    charts += [
        (_CURVES, _line(f"system/{name}", "time-relative")) for name in _SERIES if _has_metric(sweep, name)
    ]
    return [
        {
            "uuid": f"sweeper-{number}",
            **chart,
            "metricSectionId": section,
            "deleted": False,
            "isGenerated": False,
        }
        for number, (section, chart) in enumerate(charts)
    ]


def _line(key: str, axis: str) -> dict[str, Any]:
    return {
        "type": "LINE",
        "runsCountToCompare": 20,
        "metricKey": key,
        "selectedMetricKeys": [key],
        "lineSmoothness": 0,
        "xAxisScaleType": "linear",
        "scaleType": "linear",
        "range": {},
        "xAxisKey": axis,
        "selectedXAxisMetricKey": "",
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "ignoreOutliers": False,
        "useGlobalXaxisKey": False,
        "useGlobalLineSmoothing": True,
    }
