"""An MLflow server on 127.0.0.1 over a PostgreSQL database, which keeps and serves the artifacts as well."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from services.postgres import Postgres
from services.processes import UnavailableError, daemon, free_ports, kill_tree, tail, wait_for
from sweeper.tracking.ui import UI_ENV

DATABASE = "mlflow"
START_SECONDS = 90.0
"""The first start makes the tables."""


@dataclass(slots=True)
class MlflowServer:
    """A server; it can be killed and started again.

    Attributes:
        folder: Its artifacts and its log; gone with it.
        port: Of 127.0.0.1, the same after every start.
        postgres: The server of its database `DATABASE`.
    """

    folder: Path
    port: int
    postgres: Postgres
    _process: subprocess.Popen[bytes] | None = None
    # A test that starts it again does not make it its own.
    _environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts the server, after a kill too; returns when it answers.

        Raises:
            TimeoutError: It does not; the message has its log.
        """
        options = {
            "--host": "127.0.0.1",
            "--port": self.port,
            "--workers": 1,
            "--artifacts-destination": self.folder / "artifacts",
        }
        words = [sys.executable, "-P", "-m", "mlflow", "server", "--serve-artifacts"]
        self._process = daemon(
            [*words, *(part for pair in options.items() for part in pair)],
            self.folder / "server.log",
            {**self._environment, **UI_ENV, "MLFLOW_BACKEND_STORE_URI": self.postgres.url(DATABASE)},
        )
        wait_for(self._answers, START_SECONDS, lambda: tail(self.folder / "server.log"))

    def kill(self) -> None:
        """Kills the server and its workers, as a machine that fails does."""
        if self._process is not None:
            kill_tree(self._process)
            self._process = None

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, tail(self.folder / "server.log")
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{self.url}/health", timeout=2).close()
            return True
        return False


@contextlib.contextmanager
def server(postgres: Postgres) -> Iterator[MlflowServer]:
    """Yields a new server that answers, over an empty database.

    Raises:
        UnavailableError: There can be none here.
        TimeoutError: It did not come up; the message has its log.
    """
    postgres.create(DATABASE)
    folder = Path(tempfile.mkdtemp(prefix="sweeper-mlflow-"))
    made = MlflowServer(folder, free_ports(1)[0], postgres)
    try:
        made.start()
        yield made
    finally:
        made.kill()
        shutil.rmtree(folder)


@pytest.fixture
def mlflow_server(postgres: Postgres) -> Iterator[MlflowServer]:
    """A server of this test's own."""
    try:
        with server(postgres) as made:
            yield made
    except UnavailableError as error:
        pytest.skip(str(error))
