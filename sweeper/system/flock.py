"""Locks files and folders between processes, with flock.

Every process that inherits the descriptor holds the lock, and the kernel releases it when the last of them
has closed it or is gone, however it ended.
"""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO


def take_lock(file: int | IO[bytes], *, wait: bool = True, shared: bool = False) -> None:
    """Locks an open file or folder until it is closed, or converts the lock that it has.

    Converting a lock releases it for a moment.

    Args:
        file: The file or its descriptor.
        wait: Whether to wait for those that hold the lock.
        shared: Whether others may share it.

    Raises:
        BlockingIOError: Another process holds the lock, and `wait` is False.
        OSError: The file system has no locks.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    fcntl.flock(file, kind if wait else kind | fcntl.LOCK_NB)


def open_locked(path: Path, *, wait: bool = True, shared: bool = False) -> IO[bytes]:
    """Returns the open file at `path`, which is created if needed, locked until it is closed.

    Raises:
        OSError: As `take_lock`, or the file cannot be opened.
    """
    file = open(path, "ab")  # noqa: SIM115 - the lock lasts as long as the file is open
    try:
        take_lock(file, wait=wait, shared=shared)
    except BaseException:
        file.close()
        raise
    return file
