"""Where a sweep is said to be shown."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sweeper.sweep import hints
from sweeper.tracking.mlflow import MlflowTracker
from sweeper.tracking.ui import DATABASE


def test_a_store_is_named_once_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sweep: Any = SimpleNamespace()
    monkeypatch.setattr(hints, "made_files", lambda _: ["report.html", "report/speed.png"])
    place = tmp_path / "home"
    place.mkdir()
    tracker = MlflowTracker(place)
    assert hints.place_lines(sweep, tracker, place) == ["Report:  report.html"]
    (place / DATABASE).touch()
    _, store = hints.place_lines(sweep, tracker, place)
    assert store == f"         mlflow ui --backend-store-uri sqlite:///{place / DATABASE}"
