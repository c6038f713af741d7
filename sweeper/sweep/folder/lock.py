"""A lock allows one supervisor per sweep, and an epoch number stops one that has lost the lock."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

from sweeper.errors import SweepConflictError
from sweeper.system.files import remove_temporaries, write_atomic
from sweeper.system.flock import take_lock

LOCK = "lock"
EPOCH = "epoch"
CHECK_SECONDS = 1.0


class SweepLock:
    """A lock on a sweep's folder, held from construction to `release`.

    If the file system's locks do not reach other hosts, the epoch still protects the sweep: a supervisor that
    lost it finds another epoch in the file before it records anything.
    """

    def __init__(self, folder: Path) -> None:
        """Takes the lock.

        Raises:
            SweepConflictError: Another process holds it; the message names it.
        """
        self._folder = folder
        self._descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        self._checked_at = time.monotonic()
        try:
            self._take()
        except BaseException:
            os.close(self._descriptor)
            raise

    def _take(self) -> None:
        try:
            take_lock(self._descriptor, wait=False)
        except BlockingIOError:
            holder = _holder(os.read(self._descriptor, 4096))
            raise SweepConflictError(
                f"the sweep in {self._folder} is being run by {holder}; nothing was changed. "
                "Wait for it, or end it and run the same command."
            ) from None
        os.truncate(self._descriptor, 0)
        os.write(self._descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
        self._epoch = epoch_of(self._folder) + 1
        write_atomic(self._folder / EPOCH, f"{self._epoch}\n")
        remove_temporaries(self._folder)

    def check_now_and_then(self) -> None:
        """Calls `check` at most once per second; monotonic time runs on while a process is stopped.

        Raises:
            SweepConflictError: Another process has taken over the sweep.
        """
        if time.monotonic() - self._checked_at >= CHECK_SECONDS:
            self.check()

    def check(self) -> None:
        """Makes sure that this process still holds the sweep.

        Raises:
            SweepConflictError: Another process has taken it over.
        """
        self._checked_at = time.monotonic()
        if epoch_of(self._folder) != self._epoch:
            raise SweepConflictError(
                f"the sweep in {self._folder} was taken over by another process; this one stops. "
                "What was measured is kept."
            )

    def release(self) -> None:
        """Lets the next supervisor in."""
        os.close(self._descriptor)


def epoch_of(folder: Path) -> int:
    """Returns the number of supervisors that the sweep in `folder` has had."""
    try:
        return int((folder / EPOCH).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return 0


def is_gone(folder: Path) -> bool:
    """Returns whether a sweep's last supervisor, not its folder, is gone: it ran on this host, and has ended.

    It does not try to take the lock, which would turn away a supervisor that starts at that moment.
    """
    try:
        last = json.loads((folder / LOCK).read_bytes())
        if last["host"] != socket.gethostname():
            return False
        os.kill(int(last["pid"]), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return False


def _holder(text: bytes) -> str:
    try:
        holder = json.loads(text)
        return f"process {holder['pid']} on {holder['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"
