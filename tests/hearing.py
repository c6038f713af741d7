"""The sweep's end of the channel, for tests: runs a command with the hook and collects its messages."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import warm

from sweeper.script import inside, metering
from sweeper.script.inside import step_request
from sweeper.script.run.watched import WatchedTraining

MAX_SECONDS = 120.0
TRAININGS = Path(__file__).parent / "script" / "inside" / "trainings.py"


@dataclass
class Run:
    """A process that has exited, and what was heard of it."""

    status: int
    output: str
    errors: str
    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def truth(self) -> dict[str, Any]:
        """What the training says of itself in its last line."""
        found: dict[str, Any] = json.loads(self.output.splitlines()[-1])
        return found

    @property
    def watched(self) -> WatchedTraining:
        found = WatchedTraining(0.0)
        for each in self.messages:
            found.add(each)
        return found

    @property
    def last(self) -> dict[str, Any]:
        """The latest totals."""
        return next(each for each in reversed(self.messages) if "steps" in each)


def run(
    command: Sequence[str],
    environ: Mapping[str, str] | None = None,
    *,
    with_hook: bool = True,
    mode: str = inside.WATCH,
    folder: Path | None = None,
    is_forked: bool = True,
    takes_apart: bool = False,
) -> Run:
    """Runs a command to its end, with the hook or without.

    Args:
        takes_apart: Whether its steps are taken apart from the first one on.
        is_forked: Whether a fork of a process that has torch will do, where there is one (`warm`).
    """
    name = f"sweeper-test-{os.getpid()}-{os.urandom(4).hex()}"
    environment = {**os.environ, metering.METER_VARIABLE: name, **(environ or {})}
    if with_hook:
        environment.update(inside.environment(environment, mode))
    if takes_apart:
        assert folder is not None
        (folder / "request").write_bytes(bytes([step_request.TAKE_APART]))
        environment[step_request.REQUEST_VARIABLE] = str(folder / "request")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(b"\0" + name.encode())
        end.setblocking(False)
        process = _started(command, environment, environ or {}, folder, is_forked=is_forked)
        found = Run(0, "", "")
        deadline = time.monotonic() + MAX_SECONDS
        while True:
            try:
                found.output, found.errors = process.communicate(timeout=0.02)
                break
            except subprocess.TimeoutExpired:
                if time.monotonic() > deadline:
                    process.kill()
                found.messages += _received(end)
        found.messages += _received(end)
        found.status = process.returncode
    return found


def _started(
    command: Sequence[str],
    environment: Mapping[str, str],
    changed: Mapping[str, str],
    folder: Path | None,
    *,
    is_forked: bool,
) -> subprocess.Popen[str] | warm.Script:
    if is_forked and warm.can_start(command, changed):
        return warm.start(command, environment, folder)
    return subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def completed(
    command: Sequence[str], environ: Mapping[str, str] | None = None, folder: Path | None = None
) -> Run:
    """Runs a command without the hook to its end, which must be a good one."""
    done = run(command, environ, with_hook=False, folder=folder)
    assert done.status == 0, done.errors
    return done


def training(kind: str, **options: Any) -> Run:
    """Runs a kind of training."""
    found = run([sys.executable, str(TRAININGS), kind], **options)
    assert found.status == 0, found.errors
    return found


def _received(end: socket.socket) -> list[dict[str, Any]]:
    found = []
    while True:
        try:
            found.append(json.loads(end.recv(metering.MAX_BYTES)))
        except BlockingIOError:
            return found
