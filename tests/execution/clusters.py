"""Clusters for tests: a scheduler and its workers as processes of this machine, each with a GPU's number."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path


class LocalDask:
    """A Dask scheduler and workers on loopback; the workers are killed and started by number."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder = folder
        self._log = open(folder / "cluster.log", "ab")  # noqa: SIM115 - closed by close()
        self._file = folder / "scheduler.json"
        self._scheduler = self._start(
            "dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--no-show",
            "--scheduler-file", str(self._file),
        )  # fmt: skip
        deadline = time.monotonic() + 30
        while not self._file.exists() or not self._file.read_text():
            assert time.monotonic() < deadline, (folder / "cluster.log").read_text()
            time.sleep(0.05)
        import json

        self.address: str = json.loads(self._file.read_text())["address"]
        self.workers: dict[int, subprocess.Popen[bytes]] = {}
        for number in range(workers):
            self.start(number)

    def start(self, number: int) -> None:
        """Starts worker `number`, which sees GPU `number`."""
        self.workers[number] = self._start(
            "dask_worker", self.address, "--no-dashboard", "--no-nanny", "--nthreads", "1", "--host", "127.0.0.1",
            "--resources", "gpu=1", "--name", f"w{number}", "--local-directory", str(self.folder),
            env={"CUDA_VISIBLE_DEVICES": str(number)},
        )  # fmt: skip

    def kill(self, number: int) -> None:
        """Kills a worker as a lost node is: at once."""
        self.workers.pop(number).kill()

    def close(self) -> None:
        """Ends all of it."""
        for process in [*self.workers.values(), self._scheduler]:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            process.wait(timeout=10)
        self._log.close()

    def _start(self, module: str, *arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.{module}", *arguments],
            stdout=self._log,
            stderr=self._log,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONWARNINGS": "ignore", **(env or {})},
        )


@contextlib.contextmanager
def local_dask(folder: Path, workers: int) -> Iterator[LocalDask]:
    """A Dask cluster for the length of a test."""
    cluster = LocalDask(folder, workers)
    try:
        yield cluster
    finally:
        cluster.close()
