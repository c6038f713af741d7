"""The local launcher: a server process with torch imported, and a keeper and a trial per job.

supervisor ──► server (torch, one thread) ──fork──► keeper ──fork or exec──► trial
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any

from sweeper.core.errors import EnvironmentStopError
from sweeper.core.measurement import Outcome, Report
from sweeper.execution.launcher import outcome_or_lost

MARK = "SWEEPER_SWEEP"
"""In the environment of every process of a sweep: the sweep's folder."""

SERVER_ENV: Mapping[str, str] = {
    # One thread: a process with more must not fork. Trials set their own number.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
TRIAL_ENV: Mapping[str, str] = {
    # How long a thread spins at a barrier before it sleeps. With OpenMP's own choice (300,000) a step
    # of 1 ms was measured to take 160 ms where a neighbour keeps a core busy: the thread waited for
    # has lost its core to one that spins. Sleeping at once costs a quiet machine half its speed.
    "GOMP_SPINCOUNT": "1000",
    "PYTHONUNBUFFERED": "1",
}


def own_environment() -> dict[str, str]:
    """Returns what the user has set of the variables that are overridden here."""
    return {name: os.environ[name] for name in {**SERVER_ENV, **TRIAL_ENV} if name in os.environ}


class LocalHandle(Future[Outcome | Report]):
    """A job under way on this machine."""

    def __init__(self, launcher: LocalLauncher, folder: Path) -> None:
        super().__init__()
        self._launcher, self._folder = launcher, folder

    def cancel(self) -> bool:
        """Has the job's keeper end its whole tree; the attempt is lost."""
        if self.done():
            return False
        self._launcher.send(cancel=str(self._folder))
        return True


class LocalLauncher:
    """Runs jobs on this machine, at most `capacity` at once (the caller sees to that).

    The server starts with the launcher and imports torch meanwhile; a job submitted earlier waits.
    """

    def __init__(self, home: Path, *, capacity: int = 1, isolation: str = "fork") -> None:
        self.capacity = capacity
        self._isolation = isolation
        self._handles: dict[str, LocalHandle] = {}
        self._lock = threading.Lock()
        environment = {**TRIAL_ENV, **os.environ}
        environment.update(SERVER_ENV)
        environment[MARK] = str(home.resolve())
        self._log = open(home / "server.log", "ab")  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sweeper.execution.server", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            start_new_session=True,
        )
        self.ready: Mapping[str, Any] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def submit(self, folder: Path) -> LocalHandle:
        """Starts the job in `folder`."""
        name = str(folder.resolve())
        handle = LocalHandle(self, folder.resolve())
        with self._lock:
            self._handles[name] = handle
        self.send(run=name, isolation=self._isolation)
        return handle

    def send(self, **request: str) -> None:
        """Writes one request to the server."""
        try:
            self._stdin.write(json.dumps(request).encode() + b"\n")
            self._stdin.flush()
        except BrokenPipeError:
            raise EnvironmentStopError(
                f"the server of this sweep has ended; its last words are in {self._log.name}. "
                "Finished trials are kept; the same command continues."
            ) from None

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if "ready" in message:
                self.ready = message
                continue
            with self._lock:
                handle = self._handles.pop(message["ended"])
            handle.set_result(outcome_or_lost(Path(message["ended"])))
        with self._lock:
            left = list(self._handles.items())
            self._handles.clear()
        for name, handle in left:
            handle.set_result(outcome_or_lost(Path(name)))

    def close(self) -> None:
        """Ends the server, and with it every keeper and every trial."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(timeout=10)
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()
        self._log.close()


def leftovers(home: Path) -> Sequence[int]:
    """Returns the processes of an earlier run of the sweep in `home` that are still alive.

    They are known by a mark in the environment they were started with. Only the holder of the
    sweep's lock may end them.
    """
    mark = f"{MARK}={home.resolve()}".encode()
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry.name}/environ", "rb") as file:
                if mark in file.read().split(b"\0"):
                    found.append(int(entry.name))
        except OSError:
            continue
    return found
