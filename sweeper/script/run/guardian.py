"""Ends what scripts leave running; also removes their folders if the process that started them is killed.

A trial of a sweep has its keeper. A script outside of a sweep has a guardian: a small process whose standard
input ends when the process that started it is done with the script, or ends. It finds the script's processes
by a variable in their environment, since a launcher's children may be in separate sessions.
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

GUARD_VARIABLE = "SWEEPER_GUARD"
"""Environment variable of a script that names the folder to remove with it."""

MAX_SECONDS = 20.0
"""Seconds within which processes are killed, since they may start others meanwhile."""

DONE = b"done"


@contextlib.contextmanager
def guarded(folder: str) -> Iterator[dict[str, str]]:
    """Yields the environment variables by which a guardian finds a script that runs in `folder`.

    None of the script's processes runs afterwards.
    """
    # A guardian has its parent's mask: whoever ends this process may end its children first, and a stopped
    # script ends by SIGKILL alone.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        yield {GUARD_VARIABLE: folder}
    finally:
        with contextlib.suppress(OSError):
            guardian.communicate(DONE)


def main(folder: str) -> None:
    """Waits for standard input to end, and kills the processes; unless it was `DONE`, removes the folder."""
    is_done = sys.stdin.buffer.read() == DONE
    deadline = time.monotonic() + MAX_SECONDS
    while (pids := _processes(folder)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    if not is_done:
        for name, folders, _ in os.walk(folder):
            for inner in folders:
                # A script may have made some that cannot be changed.
                path = os.path.join(name, inner)
                with contextlib.suppress(OSError):
                    if not os.path.islink(path):
                        os.chmod(path, 0o700)
        shutil.rmtree(folder, ignore_errors=True)


def _processes(folder: str) -> list[int]:
    """Returns the ids of the processes whose environment names a folder."""
    pids, mark = [], f"{GUARD_VARIABLE}={folder}".encode()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
            if mark in file.read().split(b"\0"):
                pids.append(int(name))
    return pids


if __name__ == "__main__":
    main(sys.argv[1])
