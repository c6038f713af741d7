"""Reads the metrics that a script logs to MLflow, from a private copy of a store."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sweeper.system.sqlite import sqlite_uri

STORE = "mlflow.db"


@dataclass(frozen=True, slots=True)
class LoggedMetric:
    """A logged metric.

    Attributes:
        moment: Time of logging, on the monotonic clock.
        value: The metric's value; None for NaN.
    """

    name: str
    value: float | None
    step: int
    moment: float


class MlflowStore:
    """A trial's copy of an empty store with one run in it.

    Needs no server and sends nothing: metrics are read from the file as the script writes them.
    """

    def __init__(self, empty: Path, run_id: str, folder: Path) -> None:
        self._path = folder.resolve() / STORE
        self._run_id = run_id
        self._seen = 0
        shutil.copyfile(empty, self._path)
        self._offset_s = time.time() - time.perf_counter()

    @property
    def environment(self) -> dict[str, str]:
        """Variables that make MLflow in the script log to this run."""
        return {"MLFLOW_TRACKING_URI": sqlite_uri(self._path), "MLFLOW_RUN_ID": self._run_id}

    def read(self) -> Iterator[LoggedMetric]:
        """Yields the metrics logged since the last call, in order."""
        # If the store is locked, the next call reads them.
        with (
            contextlib.suppress(sqlite3.OperationalError),
            contextlib.closing(
                sqlite3.connect(f"{self._path.as_uri()}?mode=ro", uri=True, timeout=0.05)
            ) as store,
        ):
            rows = store.execute(
                "SELECT rowid, key, value, is_nan, step, timestamp FROM metrics"
                " WHERE rowid > ? ORDER BY rowid",
                (self._seen,),
            ).fetchall()
            for row, name, value, is_nan, step, milliseconds in rows:
                self._seen = row
                yield LoggedMetric(name, None if is_nan else value, step, milliseconds / 1e3 - self._offset_s)
