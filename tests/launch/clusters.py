"""Clusters for tests: a Dask scheduler and workers as processes of this machine, each with a GPU's number."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

START_SECONDS = 60.0
QUICK_NODE = Path(__file__).with_name("quick_node.py")


class LocalDask:
    """A Dask scheduler and workers on loopback; the workers are killed and started by number.

    Attributes:
        address: The scheduler's.
        scratch: Where what runs on the workers has its files.
    """

    def __init__(self, folder: Path) -> None:
        self.scratch = folder / "scratch"
        # A test that starts a worker again does not make it its own.
        self._environment = dict(os.environ)
        self._folder, self._processes = folder, list[subprocess.Popen[bytes]]()
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        about = folder / "scheduler.json"
        self.scheduler = self._start(
            *("dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--no-show"),
            *("--scheduler-file", str(about)),
        )
        deadline = time.monotonic() + START_SECONDS
        while not about.exists() or not about.read_text():
            assert time.monotonic() < deadline, self.log()
            assert self.scheduler.poll() is None, self.log()
            time.sleep(0.05)
        self.address: str = json.loads(about.read_text())["address"]

    def start(self, number: int) -> None:
        """Starts worker `number`, which sees GPU `number`."""
        self._workers[number] = self._start(
            *("dask_worker", self.address, "--no-dashboard", "--no-nanny", "--host", "127.0.0.1"),
            *("--nthreads", "1", "--resources", "gpu=1", "--name", f"w{number}"),
            *("--local-directory", str(self._folder), "--preload", str(QUICK_NODE)),
            env={"CUDA_VISIBLE_DEVICES": str(number), "SWEEPER_SCRATCH": str(self.scratch)},
        )

    def kill(self, number: int) -> None:
        """Kills a worker as a lost node is: at once."""
        self._workers.pop(number).kill()

    def log(self) -> str:
        """Returns what its processes have said."""
        return (self._folder / "cluster.log").read_text(errors="replace")

    def close(self) -> None:
        """Ends all of it."""
        for process in reversed(self._processes):
            process.kill()
            process.wait(timeout=10)

    def _start(
        self, module: str, *arguments: str, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        with open(self._folder / "cluster.log", "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.{module}", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self._environment, **(env or {})},
            )
        self._processes.append(process)
        return process


@contextlib.contextmanager
def local_dask(folder: Path, workers: int) -> Iterator[LocalDask]:
    """A Dask cluster for the length of a test."""
    cluster = LocalDask(folder)
    try:
        for number in range(workers):
            cluster.start(number)
        yield cluster
    finally:
        cluster.close()
