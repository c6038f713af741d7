"""A folder with a pipeline in it, and a bench to run sweeps of it on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from replays import PIPELINE, Bench


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.chdir(tmp_path)
    # No power is cut here; tests/chaos does that.
    monkeypatch.setattr(os, "fsync", lambda file: None)
    Path("toy_pipeline.py").write_text(PIPELINE)
    return Bench(tmp_path / "home")
