"""The saved view: what is in it, and that the real interface shows it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tracking_records import SWEEP, VARIED, some_trials

from sweeper.tracking.mlflow import MlflowTracker
from sweeper.tracking.ui import UI_ENV, ui_command, ui_url
from sweeper.tracking.view import view_state, view_tag

# MLflow 3.17 with SQLAlchemy 2.1.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning"
)

HEADERS = (
    "result/throughput",
    "result/x_baseline",
    "confirm/ratio",
    "sweeper.stage",
    "sweeper.outcome",
    "result/val_loss",
    "result/epoch_seconds",
    *VARIED,
)


def test_the_view_has_the_searched_names_as_columns_and_axes() -> None:
    state = view_state(("batch_size", "model.hidden_size"))
    assert state["orderByKey"] == "metrics.`result/throughput`"
    assert state["orderByAsc"] is False
    assert state["selectedColumns"][-2:] == ["params.`batch_size`", "params.`model.hidden_size`"]
    assert set(state["selectedColumns"]) <= set(state["columnOrder"]) == set(state["columnWidths"])
    parallel, *others = state["compareRunCharts"]
    assert parallel["selectedParams"] == ["batch_size", "model.hidden_size"]
    assert [chart["type"] for chart in others] == ["BAR", "BAR", "SCATTER"]


def test_the_tag_unpacks_to_the_view_and_fits_where_mlflow_keeps_it() -> None:
    many = tuple(f"model.some_rather_long_name_{i}" for i in range(60))
    tag = view_tag(many, 1_790_000_000_000)
    assert len(tag) < 20_000
    packed = json.loads(tag)["state"].removeprefix("deflate;")
    assert json.loads(zlib.decompress(base64.b64decode(packed))) == view_state(many)
    assert tag == view_tag(many, 1_790_000_000_000)


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
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with open(tmp_path / "ui.log", "w") as log:
        server = subprocess.Popen(
            ui_command(home, port),
            env=os.environ | UI_ENV,
            stdout=log,
            stderr=log,
            cwd=tmp_path,
            start_new_session=True,
        )
    try:
        _wait_for(f"http://127.0.0.1:{port}/health", server, tmp_path / "ui.log")
        yield ui_url(port, tracker.experiment_id)
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # Its workers too.
        server.wait()


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 90
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"the interface did not come up:\n{log.read_text()[-2000:]}")


@pytest.mark.browser
def test_the_interface_opens_on_the_view(chromium: str, served: str, tmp_path: Path) -> None:
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
            "--window-size=3600,2600",  # Table and charts keep only what is on the screen in the DOM.
            "--virtual-time-budget=30000",
            "--dump-dom",
            url,
        ]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout

    table = dom(served)
    for text in ("007 bs2048 res bf16 h64 max", "000 baseline", "006 bs4096 res fp32 h256"):
        assert text in table
    for header in HEADERS:
        assert f">{header}<" in table, header
    for value in ("13040", "14.02", "infeasible", "oom", "compute-bound", "max-autotune"):
        assert f">{value}<" in table, value
    assert "14.1 times the baseline" in table
    assert table.index("007 bs2048") < table.index("004 bs2048") < table.index("000 baseline")

    charts = dom(f"{served}&compareRunsMode=CHART")
    assert "Parallel Coordinates" in charts
    assert "result/throughput vs. result/val_loss" in charts
