"""The saved view: what is in it, and that the real interface shows it."""

from __future__ import annotations

import base64
import dataclasses
import json
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_proxy import free_port
from fault_proxy import served as serving
from tracking_records import SWEEP, VARIED, measured, some_trials

from sweeper.core.metrics import METRICS
from sweeper.tracking import RunView, SweepInfo
from sweeper.tracking.mlflow import MlflowTracker
from sweeper.tracking.ui import server_command, ui_url
from sweeper.tracking.view import view_state, view_tag

# MLflow 3.17 with SQLAlchemy 2.1.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning"
)

HEADERS = (
    "result/throughput",
    "result/speedup",
    "race/ratio",
    "sweeper.stage",
    "sweeper.outcome",
    "result/val_loss",
    "result/epoch_seconds",
    *VARIED,
)


def test_the_view_has_the_searched_names_as_columns_and_axes() -> None:
    sweep = SweepInfo(
        name="s",
        varied=("batch_size", "model.hidden_size", "loader.num_workers"),
        searched=("batch_size", "model.hidden_size"),
        metrics=("val_accuracy", "val_loss", "throughput"),
    )
    state = view_state(sweep)
    assert state["orderByKey"] == "metrics.`result/throughput`"
    assert state["orderByAsc"] is False
    assert state["selectedColumns"] == [
        "metrics.`result/throughput`",
        "metrics.`result/speedup`",
        "metrics.`race/ratio`",
        "metrics.`result/val_loss`",
        "metrics.`result/val_accuracy`",
        "tags.`sweeper.verdict`",
        "tags.`sweeper.stage`",
        "tags.`sweeper.outcome`",
        "params.`batch_size`",
        "params.`model.hidden_size`",
        "params.`loader.num_workers`",
    ]
    assert set(state["selectedColumns"]) <= set(state["columnOrder"]) == set(state["columnWidths"])
    parallel, *others = state["compareRunCharts"]
    assert parallel["selectedParams"] == ["batch_size", "model.hidden_size"]
    assert [chart["type"] for chart in others] == ["BAR", "BAR", "SCATTER", "LINE"]
    assert parallel["selectedMetrics"][-1] == "result/throughput"


@pytest.mark.parametrize(
    ("metrics", "columns", "lines"),
    [
        (("cpu_util_pct", "host_mem_peak_gib"), ["cpu_util_pct", "host_mem_peak_gib"], ["cpu_util_pct"]),
        (
            ("cpu_util_pct", "gpu_util_pct", "gpu_power_w", "gpu_mem_peak_gib", "host_mem_peak_gib"),
            ["gpu_util_pct", "gpu_mem_peak_gib"],
            ["gpu_util_pct", "gpu_power_w", "cpu_util_pct"],
        ),
    ],
    ids=["CPU", "GPU"],
)
def test_what_the_device_has_is_shown_and_a_script_without_epochs_has_no_empty_column(
    metrics, columns, lines
):
    state = view_state(SweepInfo(name="s", metrics=metrics))
    names = [name.removeprefix("metrics.`result/").rstrip("`") for name in state["selectedColumns"]]
    assert names[:2] == ["throughput", "speedup"]
    assert names[3:-3] == columns
    charts = state["compareRunCharts"]
    found = [chart["metricKey"].removeprefix("system/") for chart in charts if chart["type"] == "LINE"]
    assert found == ["train/throughput", *lines]
    assert not [chart for chart in charts if chart["type"] == "SCATTER"]


def test_a_tune_shows_the_losses_of_first_steps() -> None:
    state = view_state(SweepInfo(name="s", metrics=("cpu_util_pct",), is_recorded=True))
    assert "metrics.`train/loss`" in state["selectedColumns"]
    lines = [chart["metricKey"] for chart in state["compareRunCharts"] if chart["type"] == "LINE"]
    assert lines == ["train/loss", "train/throughput", "system/cpu_util_pct"]


def test_the_tag_unpacks_to_the_view_and_fits_where_mlflow_keeps_it() -> None:
    many = tuple(f"model.some_rather_long_name_{i}" for i in range(60))
    sweep = SweepInfo(name="s", varied=many, metrics=tuple(METRICS))
    tag = view_tag(sweep, 1_790_000_000_000)
    assert len(tag) < 20_000
    packed = json.loads(tag)["state"].removeprefix("deflate;")
    assert json.loads(zlib.decompress(base64.b64decode(packed))) == view_state(sweep)
    assert tag == view_tag(sweep, 1_790_000_000_000)


@pytest.fixture
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    return found


@pytest.fixture
def served(home: Path, tmp_path: Path) -> Iterator[str]:
    """The address of the saved view of a small sweep, served by the real interface."""
    tracker = MlflowTracker(home)
    tracker.open(SWEEP)
    for record, view in some_trials(tmp_path / "trials"):
        tracker.track(record, view)
    label = "009 <script>document.title='owned'</script> \x1b[31m\u202ebs64"
    note = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>said"
    hostile = measured(
        tmp_path / "trials", 9, changes={"model.hidden_size": "<b>rows</b>"}, throughput=20000.0
    )
    tracker.track(hostile, RunView(label=label, note=note, verdict="<i>x</i>"))
    tracker.open(dataclasses.replace(SWEEP, note=f"14.1 times the baseline {note}"))
    port = free_port()
    with serving(server_command(home, port), port, tmp_path):
        yield ui_url(port, tracker.experiment_id)


@pytest.mark.browser
def test_the_interface_opens_on_the_view(chromium: str, served: str, tmp_path: Path) -> None:
    said: list[str] = []

    def dom(url: str) -> str:
        profile = tmp_path / "profile"
        command = [
            chromium,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            f"--user-data-dir={profile}",
            "--window-size=3600,5200",  # Table and charts keep only what is on the screen in the DOM.
            "--virtual-time-budget=30000",
            "--enable-logging=stderr",
            "--dump-dom",
            url,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        said.extend(line for line in done.stderr.splitlines() if "CONSOLE" in line)
        return done.stdout

    table = dom(served)
    for text in ("007 bs2048 res bf16 h64 max", "000 baseline", "006 bs4096 res fp32 h256"):
        assert text in table
    for header in HEADERS:
        assert f">{header}<" in table, header
    for value in ("13040", "14.02", "infeasible", "oom", "compute-bound", "max-autotune"):
        assert f">{value}<" in table, value
    assert "14.1 times the baseline" in table
    assert table.index("007 bs2048") < table.index("004 bs2048") < table.index("000 baseline")

    # Hostile names stay text.
    assert r"&lt;script&gt;document.title='owned'&lt;/script&gt; \x1b[31m\u202ebs64" in table
    assert "&lt;i&gt;x&lt;/i&gt;" in table
    assert "<b>rows" not in table
    assert "<title>owned" not in table
    assert "\u202e" not in table

    charts = dom(f"{served}&compareRunsMode=CHART")
    assert "Parallel Coordinates" in charts
    assert "result/throughput vs. result/val_loss" in charts
    for series in ("train/throughput", "system/gpu_util_pct", "system/cpu_util_pct", "race/ratio"):
        assert f">{series}<" in charts, series
    assert "<title>owned" not in charts
    assert not [line for line in said if "Uncaught" in line or "sharedViewState" in line]
