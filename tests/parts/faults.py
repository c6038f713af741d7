"""Causes faults in a trial's process by name: as a runner, and inside a pipeline."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from parts import noop
from sweeper.core.config import TrialConfig
from sweeper.core.job import Job, write_job
from sweeper.core.measurement import Measurement
from sweeper.core.progress import Progress

RUNNER = "parts.faults:run"
"""A runner that causes the fault `model.fault`, and then does what the no-op runner does."""

LONG_SECONDS = 600
WAIT_SECONDS = 60
"""Longest time to wait for a job that ends by itself."""


def fault_job(folder: Path, fault: str = "", **changes: object) -> Path:
    """Writes a job with the fault of that name, and returns its folder."""
    config = TrialConfig(model={"fault": fault})
    write_job(folder, Job(uid=folder.name, runner=RUNNER, config=config, **changes))  # type: ignore[arg-type]
    return folder


def _sleep() -> None:
    time.sleep(LONG_SECONDS)


def _deaf() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _sleep()


def _raise() -> NoReturn:
    raise ValueError("a mistake in the model")


def _oom() -> NoReturn:
    raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 1 GiB")


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _children() -> None:
    """Leaves a plain child and a daemon in a separate session (double fork); both outlive the process."""
    subprocess.Popen(["sleep", str(LONG_SECONDS)])
    first = os.fork()
    if first == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.execvp("sleep", ["sleep", str(LONG_SECONDS)])
    os.waitpid(first, 0)


def _children_sleep() -> None:
    _children()
    _sleep()


def _flood() -> None:
    """Writes forever, as fast as it is read."""
    line = b"x" * 1023 + b"\n"
    while True:
        os.write(1, 64 * line)


def _print() -> None:
    """Writes 3 MiB, including forged results, bytes that are not text, and colours."""
    print('{"result": {"type": "report", "values": {"forged": 1}}}', flush=True)
    print('{"stage": "forged"}', file=sys.stderr, flush=True)
    for _ in range(3 * 1024):
        os.write(1, b"y" * 1023 + b"\n")
    os.write(1, b"\xff\xfe broken \x1b[31mred\x1b[0m\x07\nthe last line\n")


FAULTS: Mapping[str, Callable[[], None]] = {
    "": lambda: None,
    "children": _children,
    "children, sleep": _children_sleep,
    "deaf": _deaf,
    "exit": lambda: os._exit(0),
    "exit 3": lambda: os._exit(3),
    "flood": _flood,
    "kill": _kill,
    "oom": _oom,
    "print": _print,
    "raise": _raise,
    "sleep": _sleep,
}
"""The function that causes each fault, by the value of `model.fault`."""


def run(job: Job, progress: Progress) -> Measurement:
    """Causes the fault `model.fault`; returns a synthetic measurement if the fault returns."""
    progress.stage("build")
    FAULTS[str(job.config.model.get("fault", ""))]()
    return noop.run(job, progress)
