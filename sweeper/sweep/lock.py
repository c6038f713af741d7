"""One supervisor per sweep: a lock the kernel releases with its holder, and an epoch against ghosts."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from pathlib import Path

from sweeper.core.errors import SweepConflictError
from sweeper.core.files import write_atomic

LOCK = "lock"
EPOCH = "epoch"


class SweepLock:
    """Held from construction to `release`.

    A file system on which locks do not reach other hosts still has the epoch: a supervisor that
    lost the sweep meanwhile finds another one in the file before it tells anything.
    """

    def __init__(self, folder: Path) -> None:
        """Takes the lock.

        Raises:
            SweepConflictError: Another process holds it; the message names it.
        """
        self._folder = folder
        self._file = open(folder / LOCK, "a+", encoding="utf-8")  # noqa: SIM115 - held
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = _holder(self._file.read())
            self._file.close()
            raise SweepConflictError(
                f"the sweep in {folder} is being run by {holder}; nothing was changed. "
                "Wait for it, or end it and run the same command."
            ) from None
        try:
            self._file.truncate(0)
            self._file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
            self._file.flush()
            self._epoch = self._read_epoch() + 1
            write_atomic(folder / EPOCH, f"{self._epoch}\n")
        except OSError:
            # Closing would write again what the disk has just refused.
            os.close(self._file.detach().detach().detach() if False else self._file.fileno())
            raise

    def _read_epoch(self) -> int:
        try:
            return int((self._folder / EPOCH).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return 0

    def check(self) -> None:
        """Makes sure that the sweep is still this process's.

        Raises:
            SweepConflictError: It is not.
        """
        if self._read_epoch() != self._epoch:
            raise SweepConflictError(
                f"the sweep in {self._folder} was taken over by another process; this one stops. "
                "What was measured is kept."
            )

    def release(self) -> None:
        """Lets the next supervisor in."""
        self._file.close()


def _holder(text: str) -> str:
    try:
        found = json.loads(text)
        return f"process {found['pid']} on {found['host']}"
    except (ValueError, KeyError):
        return "another process"
