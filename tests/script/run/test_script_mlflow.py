"""What a script logs to MLflow itself: a store of its own, read as it is written."""

from __future__ import annotations

import dataclasses
import sqlite3
import sys
from pathlib import Path

import pytest
from scripts import PLAN, job_of

from sweeper.core.measurement import Measurement
from sweeper.core.script import Script
from sweeper.script.run.mlflow_store import STORE, MlflowStore
from sweeper.tracking.script_store import empty_store

LOGGING = Script(command=(sys.executable, "with_mlflow.py", "{batch_size}"), mlflow="steps")


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    return empty_store(tmp_path_factory.mktemp("cache"))


@pytest.mark.slow
def test_a_script_that_logs_to_mlflow_is_measured(run, tmp_path, empty: tuple[Path, str]):
    store, run_id = empty
    script = dataclasses.replace(LOGGING, mlflow_store=str(store), mlflow_run=run_id)
    found = run(job_of(script, {"batch_size": 32}, dataclasses.replace(PLAN, quality_samples=3200)))
    assert isinstance(found, Measurement), found
    assert found.reported_by == "MLflow (step)"
    with sqlite3.connect(tmp_path / "trial" / STORE) as rows:
        speeds = [value for (value,) in rows.execute("SELECT value FROM metrics WHERE key = 'speed'")]
    # What the script takes for logging is in the throughput, and not in the speeds that it logs.
    assert 0.8 * min(speeds) < found.throughput < 1.1 * max(speeds)
    assert found.quality is not None
    assert 0.2 < found.quality.val_loss < 1.2


@pytest.mark.slow
def test_the_empty_store_is_made_once_and_stays_empty(tmp_path: Path, empty: tuple[Path, str]):
    store, run_id = empty
    changed = store.stat().st_mtime_ns
    assert empty_store(store.parents[1]) == (store, run_id)
    assert store.stat().st_mtime_ns == changed


def test_metrics_are_read_as_they_come(tmp_path: Path):
    empty = tmp_path / "empty.db"
    with sqlite3.connect(empty) as made:
        made.execute("CREATE TABLE metrics (key, value, timestamp, run_uuid, step, is_nan)")
    # Characters that mean something in a URI.
    folder = tmp_path / "50%20 of #1"
    folder.mkdir()
    store = MlflowStore(empty, "abc", folder)
    assert store.environment["MLFLOW_RUN_ID"] == "abc"
    with sqlite3.connect(folder / STORE) as writer:
        writer.execute("INSERT INTO metrics VALUES ('loss', 0.5, 1000, 'abc', 3, 0)")
        writer.commit()
        assert [(each.name, each.value, each.step) for each in store.read()] == [("loss", 0.5, 3)]
        assert list(store.read()) == []
        writer.execute("INSERT INTO metrics VALUES ('loss', 0.0, 2000, 'abc', 4, 1)")
        writer.commit()
        assert [(each.value, each.step) for each in store.read()] == [(None, 4)]


def test_a_store_that_is_locked_is_read_later(tmp_path: Path):
    empty = tmp_path / "empty.db"
    with sqlite3.connect(empty) as made:
        made.execute("CREATE TABLE metrics (key, value, timestamp, run_uuid, step, is_nan)")
        made.execute("INSERT INTO metrics VALUES ('loss', 0.5, 1000, 'abc', 3, 0)")
    store = MlflowStore(empty, "abc", tmp_path)
    with sqlite3.connect(tmp_path / STORE, isolation_level=None) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        assert list(store.read()) == []
        writer.execute("ROLLBACK")
    assert len(list(store.read())) == 1
