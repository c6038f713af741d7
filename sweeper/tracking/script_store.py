"""Makes an empty MLflow store with one run, to be copied for each trial of a script that uses MLflow."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

from sweeper.system.files import write_atomic
from sweeper.tracking.mlflow import client_class

RUN = "run_id"


def empty_store(cache: Path) -> tuple[Path, str]:
    """Returns the database and its run's id; makes it once per version of MLflow, in `cache`."""
    folder = cache.resolve() / f"script-mlflow-{importlib.metadata.version('mlflow')}"
    database, run = folder / "mlflow.db", folder / RUN
    if not run.exists():
        folder.mkdir(parents=True, exist_ok=True)
        own = folder / f"making-{os.getpid()}.db"
        own.unlink(missing_ok=True)
        client = client_class()(tracking_uri=f"sqlite:///{own}")
        experiment = client.create_experiment("script", artifact_location=str(folder / "artifacts"))
        run_id = client.create_run(experiment).info.run_id
        own.replace(database)
        write_atomic(run, run_id)
    return database, run.read_text(encoding="utf-8")
