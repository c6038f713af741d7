"""Runs jobs on this machine: a server imports torch; each job gets a keeper and a trial process.

supervisor ──► server (torch, one thread) ──fork──► keeper ──fork or exec──► trial
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any

from sweeper.core.measurement import Outcome, Report
from sweeper.errors import EnvironmentStopError
from sweeper.launch.launcher import Launcher, LaunchRequest, outcome_or_lost
from sweeper.system.environment import held_back_line, trial_env
from sweeper.system.process import python_module

SWEEP_MARK = "SWEEPER_SWEEP"
"""Environment variable that marks every process of a sweep; its value is the sweep's folder."""

MAX_SERVERS = 3
"""Maximum number of servers per launcher: if that many were killed, the next one would be too."""

SERVER_ENV: Mapping[str, str] = {
    # One thread: a process with more must not fork. Trials set their own number.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
TRIAL_ENV: Mapping[str, str] = {
    # How often a thread spins at a barrier before it sleeps. With OpenMP's default (300,000), a
    # step of 1 ms took 160 ms when another process kept a core busy: the thread that all others
    # waited for had lost its core to a spinning one. Without spins, a quiet machine is half as fast.
    # A timing that collapses as soon as something else runs cannot be compared with another.
    "GOMP_SPINCOUNT": "1000",
    # Indices mean the same GPUs to CUDA as to NVML; by default, CUDA starts with the fastest.
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "PYTHONUNBUFFERED": "1",
}


def own_environment() -> dict[str, str]:
    """Returns the user's values of the environment variables that this module overrides."""
    return {name: os.environ[name] for name in {**SERVER_ENV, **TRIAL_ENV} if name in os.environ}


def environment_of(
    folder: Path, pass_env: Sequence[str], environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Returns the environment of a local process that runs jobs of the sweep in `folder`.

    Its mark lets the next supervisor end processes that a killed one left behind.

    Args:
        pass_env: Environment variables that trials get in addition to the usual ones
            (`sweeper.system.environment.trial_env`).
        environ: The environment they are taken from.
    """
    return {**TRIAL_ENV, **trial_env(environ, pass_env), SWEEP_MARK: str(folder.resolve())}


class LocalHandle(Future[Outcome | Report]):
    """A job running on this machine."""

    def __init__(self, launcher: LocalLauncher, folder: Path) -> None:
        super().__init__()
        self._launcher, self._folder = launcher, folder

    def cancel(self) -> bool:
        """Makes the job's keeper end its process tree; the attempt is lost."""
        if self.done():
            return False
        self._launcher.send(cancel=str(self._folder))
        return True


class LocalLauncher(Launcher):
    """Runs jobs on this machine, at most `capacity` at a time (which the caller ensures).

    The server starts with the launcher and imports torch; jobs wait until that is done.

    Attributes:
        ready: The server's message once it has imported torch; empty before. Only tests read it.
    """

    capacity = sys.maxsize
    shares_machine = True
    notes: Sequence[str] = ()

    def __init__(
        self,
        home: Path,
        *,
        capacity: int = sys.maxsize,
        isolation: str = "fork",
        pass_env: Sequence[str] = (),
        environ: Mapping[str, str] = os.environ,
        program: Sequence[str] = (),
    ) -> None:
        """Starts a server; if it is killed, the next submitted job starts another one.

        Args:
            pass_env: Environment variables that trials get in addition to the usual ones
                (`sweeper.system.environment.trial_env`).
            environ: The environment they are taken from.
            program: Arguments for Python that run a server other than the usual one.
        """
        self.capacity = capacity
        line = held_back_line(environ, pass_env)
        self.notes = (line,) if line else ()
        self._isolation = isolation
        self._program = program
        self._home = home
        self._num_servers = 0
        self._handles: dict[str, LocalHandle] = {}
        self._lock = threading.Lock()
        environment = {**environment_of(home, pass_env, environ), **SERVER_ENV}
        self._log = open(home / "server.log", "ab")  # noqa: SIM115 - closed by close()
        self._environment = environment
        self.ready: Mapping[str, Any] = {}
        self._start_server()

    def _start_server(self) -> None:
        if self._num_servers == MAX_SERVERS:
            raise EnvironmentStopError(
                f"the server of this sweep was killed {MAX_SERVERS} times; see its output in "
                f"{self._log.name}. Finished trials are kept; run the same command to continue."
            )
        self._num_servers += 1
        self._has_ended = False
        command = python_module("sweeper.launch.server", str(os.getpid()))
        if self._program:
            command = [sys.executable, *self._program, str(os.getpid())]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=self._environment,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The server's process ID."""
        return self._process.pid

    def submit(self, folder: Path) -> LocalHandle:
        """Starts the job in `folder`."""
        name = str(folder.resolve())
        handle = LocalHandle(self, folder.resolve())
        with self._lock:
            if self._has_ended:
                self._let_go()
                self._start_server()
            self._handles[name] = handle
        self.send(run=name, isolation=self._isolation)
        return handle

    def send(self, **request: str) -> None:
        """Writes one request to the server; if it was just killed, its jobs are lost."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(json.dumps(request).encode() + b"\n")
            self._stdin.flush()

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _read(self, server: subprocess.Popen[bytes]) -> None:
        assert server.stdout is not None
        for line in server.stdout:
            if not line.endswith(b"\n"):
                break
            message = json.loads(line)
            if "ready" in message:
                self.ready = message
                continue
            with self._lock:
                handle = self._handles.pop(message["ended"])
            _set_outcome(handle, Path(message["ended"]))
        # The keepers also hold the pipe open: when it ends, no keeper and no trial is left, unless a
        # keeper was killed together with the server.
        if not self._stdin.closed:
            with contextlib.suppress(OSError):
                end_leftovers(self._home)
        with self._lock:
            left = list(self._handles.items())
            self._handles.clear()
            self._has_ended = True
        for name, handle in left:
            _set_outcome(handle, Path(name))

    def close(self) -> None:
        """Ends the server and with it every keeper and every trial."""
        self._let_go()
        self._log.close()

    def _let_go(self) -> None:
        """Ends the current server, if it is still running, and closes its pipes."""
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


def _set_outcome(handle: LocalHandle, folder: Path) -> None:
    """Sets a handle's outcome, or the error raised in reading it."""
    try:
        handle.set_result(outcome_or_lost(folder))
    except Exception as error:
        handle.set_exception(error)


def launch(request: LaunchRequest) -> LocalLauncher:
    """Returns the launcher of `execution.launcher: local`."""
    chosen = request.execution
    return LocalLauncher(request.folder, isolation=chosen.isolation, pass_env=chosen.pass_env)


def end_leftovers(home: Path, seconds: float = 15.0) -> Sequence[int]:
    """Kills leftover processes of an earlier run of the sweep in `home`; returns the survivors."""
    deadline = time.monotonic() + seconds
    while left := leftovers(home):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return left
        time.sleep(0.02)
    return ()


def leftovers(home: Path) -> Sequence[int]:
    """Returns the processes of an earlier run of the sweep in `home` that are still alive.

    They are recognised by a mark in their initial environment. Only the holder of the sweep's
    lock may end them.
    """
    mark = os.fsencode(f"{SWEEP_MARK}={home.resolve()}")
    pids = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry.name}/environ", "rb") as file:
                if mark in file.read().split(b"\0"):
                    pids.append(int(entry.name))
        except OSError:
            continue
    return pids
