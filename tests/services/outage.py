"""A sweep whose MLflow server or database is killed in the middle, and what MLflow has of it in the end.

`outage(seconds)` starts all of it by itself; it is what the bar on outages is measured with.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services import mlflow_server, postgres
from services.mlflow_server import DATABASE, MlflowServer
from services.postgres import Postgres
from services.processes import wait_for

REPOSITORY = Path(__file__).parents[2]
NAME = "outage"
SPACE = """\
name: {name}
pipeline: pipelines.tabular
data: {{rows: 2000, features: 4}}
space:
  batch_size: {{type: int, low: 32, high: 512, log: true}}
  optimizer.lr: {{type: float, low: 1e-4, high: 1e-2, log: true}}
fix: {{model.hidden_size: 8}}
baseline: {{loader.kind: rows, batch_size: 32}}
measure: {{window_seconds: 0.05, repeats: 1, quality_samples: 0, warmup_cap_seconds: 0.1, trace: false}}
search: {{trials: 9999, minutes: {minutes}, regret: null}}
confirm: {{rounds: 0}}
"""
SHOWN = 3
"""Runs that MLflow has when it is killed."""
START_SECONDS = 12.0
"""Until MLflow has them."""
TAIL_SECONDS = 24.0
"""For which the sweep goes on after the outage, 10 s of which the server takes to start."""
PATIENCE_SECONDS = 120.0

Rows = Counter[tuple[str, ...]]
_OURS = "runs.lifecycle_stage = 'active' AND tags.key = 'sweeper.uid'"
RUNS = f"SELECT count(*) FROM runs JOIN tags USING (run_uuid) WHERE {_OURS}"
POINTS = (
    "SELECT tags.value, metrics.key, metrics.step, metrics.timestamp, metrics.value, metrics.is_nan"
    f" FROM metrics JOIN runs USING (run_uuid) JOIN tags USING (run_uuid) WHERE {_OURS}"
)
"""Every point of every run, the runs by what they are known by in a sweep's folder."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep in a folder of its own, by the command line.

    Attributes:
        uri: Where MLflow is.
        env: What its environment has beyond this process's.
    """

    folder: Path
    uri: str
    env: dict[str, str]

    @property
    def home(self) -> Path:
        """The state folder."""
        return self.folder / "mlruns"

    def lay_out(self, minutes: float) -> None:
        """Writes the space, for a search of so many minutes."""
        shutil.copytree(
            REPOSITORY / "pipelines", self.folder / "pipelines", ignore=shutil.ignore_patterns("__pycache__")
        )
        (self.folder / "space.yaml").write_text(SPACE.format(name=NAME, minutes=minutes))

    @contextlib.contextmanager
    def running(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """Yields a process with `sweeper WORDS`, killed at the end; what it prints is in `output`."""
        with open(self.folder / "output", "ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "sweeper", *words],
                cwd=self.folder,
                env={
                    **os.environ,
                    "PYTHONPATH": str(REPOSITORY),
                    "MLFLOW_TRACKING_URI": self.uri,
                    **self.env,
                },
                stdout=file,
                stderr=file,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def run(self, *words: str) -> int:
        """Runs `sweeper WORDS` to its end; returns the exit code."""
        with self.running(*words) as process:
            return process.wait(PATIENCE_SECONDS)

    def finished(self) -> int:
        """Returns how many trials have an outcome."""
        return len(list(self.home.glob(f"sweeps/{NAME}/trials/*/outcome.json")))

    def shown(self) -> int:
        """Returns how many trials MLflow is known to have."""
        return len(list(self.home.glob(f"sweeps/{NAME}/trials/*/tracked")))

    def output(self) -> str:
        """Returns all that was printed."""
        return (self.folder / "output").read_text(encoding="utf-8", errors="replace")

    def anew(self) -> Rows:
        """Returns the points that an empty store is given by this sweep's folder, in a copy of the home."""
        home = shutil.copytree(self.home, self.folder / "anew")
        own = Sweep(self.folder, "", {})
        code = own.run("sync", NAME, "--home", str(home))
        assert code == 0, self.output()
        with contextlib.closing(sqlite3.connect(home / "mlflow.db")) as database:
            return Counter(_normal(row) for row in database.execute(POINTS))


def outage(seconds: float | None, *, mlflow_too: bool = True) -> dict[str, Any]:
    """Kills an MLflow server and its PostgreSQL in the middle of a sweep, for so many seconds.

    Args:
        seconds: None until the sweep has ended.
        mlflow_too: Whether the MLflow server is killed as well as its database.

    Returns:
        `wall_seconds` of the sweep, its `exit_code`, how many runs MLflow had before, how many waited in the
        end, how many there are after `sync` and how many there should be, the exit code of `sync --verify`,
        and whether the points are those of a store that was never away.

    Raises:
        UnavailableError: A service cannot run here.
    """
    with (
        tempfile.TemporaryDirectory(prefix="sweeper-outage-") as folder,
        postgres.server() as database,
        mlflow_server.server(database) as server,
    ):
        sweep = Sweep(Path(folder), server.url, {})
        return through_outage(sweep, seconds, database, server if mlflow_too else None)


def through_outage(
    sweep: Sweep,
    seconds: float | None,
    database: Postgres,
    server: MlflowServer | None = None,
    tail: float = TAIL_SECONDS,
) -> dict[str, Any]:
    """Does what `outage` tells with services that run; kills the database, and the server if given.

    Args:
        tail: For how long the sweep goes on after it.
    """
    sweep.lay_out((START_SECONDS + (seconds or 0.0) + tail) / 60)
    begun = time.monotonic()
    with sweep.running("run", "space.yaml") as process:
        wait_for(lambda: process.poll() is not None or sweep.shown() >= SHOWN, 60, sweep.output)
        assert process.poll() is None, sweep.output()
        before, finished, killed = sweep.shown(), sweep.finished(), time.monotonic()
        for each in filter(None, (server, database)):
            each.kill()
        if seconds is None:
            process.wait(PATIENCE_SECONDS)
        else:
            time.sleep(seconds)
        away, meanwhile = time.monotonic() - killed, sweep.finished() - finished
        for each in filter(None, (database, server)):
            each.start()
        code = process.wait(PATIENCE_SECONDS)
    wall = time.monotonic() - begun
    waiting = sweep.finished() - sweep.shown()
    synced, verified = sweep.run("sync", NAME), sweep.run("sync", NAME, "--verify")
    points = Counter(_normal(row) for row in database.query(DATABASE, POINTS))
    return {
        "outage_seconds": round(away, 1),
        "wall_seconds": round(wall, 1),
        "exit_code": code,
        "runs_before": before,
        "finished_meanwhile": meanwhile,
        "runs_waiting": waiting,
        "synced": synced,
        "verified": verified,
        "runs": int(database.query(DATABASE, RUNS)[0][0]),
        "runs_wanted": sweep.finished(),
        "points": points.total(),
        "points_equal": points == sweep.anew(),
    }


def _normal(row: tuple[Any, ...]) -> tuple[str, ...]:
    uid, key, step, stamp, value, is_nan = row
    return uid, key, str(step), str(stamp), repr(float(value)), str(is_nan in (True, 1, "t"))
