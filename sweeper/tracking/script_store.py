"""Makes an empty MLflow store with one run, to be copied for each trial of a script that uses MLflow."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

from sweeper.system.files import write_atomic
from sweeper.system.flock import open_locked
from sweeper.system.sqlite import sqlite_uri
from sweeper.tracking.mlflow import client_class
from sweeper.tracking.ui import artifact_location

RUN = "run_id"


def empty_store(cache: Path) -> tuple[Path, str]:
    """Returns the database and its run's id; makes it once per version of MLflow, in `cache`."""
    folder = cache.resolve() / f"script-mlflow-{importlib.metadata.version('mlflow')}"
    database, run = folder / "mlflow.db", folder / RUN
    if not run.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # Without the lock, a sweep that begins at the same moment could replace the database after this one
        # has read the run.
        with open_locked(folder / "lock"):
            if not run.exists():
                write_atomic(run, _make(database))
    return database, run.read_text(encoding="utf-8")


def _make(database: Path) -> str:
    """Makes the database, and returns its run's id."""
    draft = database.with_name(f"making-{os.getpid()}.db")
    draft.unlink(missing_ok=True)
    client = client_class()(tracking_uri=sqlite_uri(draft))
    experiment = client.create_experiment(
        "script", artifact_location=artifact_location(database.with_name("artifacts"))
    )
    run_id: str = client.create_run(experiment).info.run_id
    draft.replace(database)
    return run_id
