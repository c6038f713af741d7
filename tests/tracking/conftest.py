"""One real SQLite store per test, made from one template: MLflow takes a second to make a new one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeper.tracking import SweepInfo
from sweeper.tracking.mlflow import MlflowTracker
from sweeper.tracking.ui import DATABASE


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("template")
    MlflowTracker(home).open(SweepInfo(name="template"))
    return home / DATABASE


@pytest.fixture
def home(tmp_path: Path, empty_store: Path) -> Path:
    home = tmp_path / "mlruns"
    home.mkdir()
    shutil.copy(empty_store, home / DATABASE)
    return home


@pytest.fixture
def tracker(home: Path) -> Iterator[MlflowTracker]:
    tracker = MlflowTracker(home)
    yield tracker
    tracker.close()
