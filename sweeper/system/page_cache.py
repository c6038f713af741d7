"""Drops files from the kernel's page cache."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def forget(root: Path) -> None:
    """Drops a file, or all files of a folder, from memory, so that they are read from the disk again.

    Pages that another process has mapped, or that are not yet on the disk, stay in memory.
    """
    files = (path for path in root.rglob("*") if path.is_file()) if root.is_dir() else [root]
    for path in files:
        with contextlib.suppress(OSError):
            number = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(number)
