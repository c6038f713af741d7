"""A folder of one's own with an export in it, and a run's folder whose history a test writes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from productions import export_in

from sweeper.production.folder import RunFolder, open_run
from sweeper.production.request import RunRequest, read_request
from sweeper.tracking import SweepInfo
from sweeper.tracking.mlflow import MlflowTracker
from sweeper.tracking.ui import DATABASE

Ask = Callable[..., RunRequest]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def ask(here: Path) -> Ask:
    """Returns what an export asks for; its own changes by keyword, the command line's in place."""

    def make(*overrides: str, epochs: int | None = None, max_minutes: float | None = None, **changes: Any):
        return read_request(export_in(here, **changes), overrides, epochs, max_minutes)

    return make


@pytest.fixture
def folder(ask: Ask, here: Path) -> Iterator[RunFolder]:
    found = open_run(here / "home", ask(), new=False)
    yield found
    found.lock.release()


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("template")
    MlflowTracker(home).open(SweepInfo(name="template"))
    return home / DATABASE


@pytest.fixture
def tracker(here: Path, empty_store: Path) -> Iterator[MlflowTracker]:
    (here / "home").mkdir(exist_ok=True)
    shutil.copy(empty_store, here / "home" / DATABASE)
    tracker = MlflowTracker(here / "home")
    yield tracker
    tracker.close()
