"""Reads what a script logs to MLflow from a private copy of a store."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

STORE = "mlflow.db"


@dataclass(frozen=True, slots=True)
class Logged:
    """A metric that was logged.

    Attributes:
        moment: When, on the monotonic clock.
        value: None where it was not a number.
    """

    name: str
    value: float | None
    step: int
    moment: float


class MlflowStore:
    """A trial's own copy of an empty store with one run in it.

    Nothing is sent anywhere, and no server can be away: what is in it is read as the script writes.
    """

    def __init__(self, empty: Path, run_id: str, folder: Path) -> None:
        self._path = folder.resolve() / STORE
        self._run_id = run_id
        self._seen = 0
        shutil.copyfile(empty, self._path)
        self._offset_s = time.time() - time.perf_counter()

    @property
    def environment(self) -> dict[str, str]:
        """What has MLflow in the script log into this run."""
        return {"MLFLOW_TRACKING_URI": f"sqlite:///{self._path}", "MLFLOW_RUN_ID": self._run_id}

    def read(self) -> Iterator[Logged]:
        """Yields what was logged since the last call, as it came."""
        # It may be locked for the moment; then the next call has it.
        with (
            contextlib.suppress(sqlite3.OperationalError),
            contextlib.closing(
                sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=0.05)
            ) as store,
        ):
            rows = store.execute(
                "SELECT rowid, key, value, is_nan, step, timestamp FROM metrics"
                " WHERE rowid > ? ORDER BY rowid",
                (self._seen,),
            ).fetchall()
            for row, name, value, is_nan, step, milliseconds in rows:
                self._seen = row
                yield Logged(name, None if is_nan else value, step, milliseconds / 1e3 - self._offset_s)
