"""Ends scripts, and removes their folders, if the process that started them is killed.

A trial has its keeper. What a command runs outside of a sweep has a guardian: a small process that notices
the end of the command by its standard input. It knows a script's processes by a variable in their
environment, since a launcher's children may be in sessions of their own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

VARIABLE = "SWEEPER_GUARD"
"""Environment variable of a script: the folder that is removed with it."""

MAX_SECONDS = 20.0
"""For how long processes that start others are killed."""

DONE = b"done"


@contextlib.contextmanager
def guarded(folder: str) -> Iterator[dict[str, str]]:
    """Yields the variables that a script needs in its environment; `folder` is where it runs."""
    guardian = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield {VARIABLE: folder}
    finally:
        with contextlib.suppress(OSError):
            guardian.communicate(DONE)


def main(folder: str) -> None:
    """Waits for the end of standard input, then ends what is left."""
    if sys.stdin.buffer.read() == DONE:
        return
    deadline = time.monotonic() + MAX_SECONDS
    while (found := _processes(folder)) and time.monotonic() < deadline:
        for each in found:
            with contextlib.suppress(OSError):
                os.kill(each, signal.SIGKILL)
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


def _processes(folder: str) -> list[int]:
    """Returns the processes that run for a folder, by their environment."""
    found, mark = [], f"{VARIABLE}={folder}".encode()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
            if mark in file.read().split(b"\0"):
                found.append(int(name))
    return found


if __name__ == "__main__":
    main(sys.argv[1])
