"""Keeps what a script adds to its folder before it trains, such as a download, for all later runs."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sweeper.script.run.mirror import Mirror

FOLDER, INDEX = "added", "index.txt"
MIN_BYTES = 2**20
"""Smaller additions are quickly made again."""


@dataclass(frozen=True, slots=True)
class Addition:
    """A file or folder that a script has added.

    Attributes:
        path: Its path from the folder around the user's repository.
        num_bytes: The size of its files.
    """

    path: Path
    num_bytes: int


class Store:
    """What scripts have added to a repository and what is around it.

    Args:
        cache: Folder of compile caches that runs share. The store is beside it, where no script writes.
        top: The user's repository, resolved.
    """

    def __init__(self, cache: Path, top: Path) -> None:
        self._folder = cache.parent / FOLDER / hashlib.sha256(os.fsencode(top)).hexdigest()[:16]
        self._around = top.parent

    def paths(self) -> list[Path]:
        """Returns where additions belong, as absolute paths."""
        try:
            lines = (self._folder / INDEX).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return []
        return [self._around / line for line in lines]

    def show(self, mirror: Mirror) -> None:
        """Adds links to what was added before; the folders that they belong in are no links."""
        for path in self.paths():
            relative = path.relative_to(self._around)
            # The user may have added it meanwhile.
            with contextlib.suppress(OSError):
                (mirror.root / relative).parent.mkdir(parents=True, exist_ok=True)
                (mirror.root / relative).symlink_to(self._folder / relative)

    def keep(self, mirror: Mirror, before_ns: int) -> list[Addition]:
        """Takes what was added to a mirror, and is complete; returns what was taken.

        Args:
            before_ns: The time of the first step on the wall clock, in nanoseconds. What changed later
                belongs to the training: checkpoints, logs.
        """
        kept = []
        suffix = f"{os.getpid()}-{threading.get_ident()}"
        for addition in _additions(mirror, Path(), before_ns):
            target, making = self._folder / addition.path, self._folder / f".making-{suffix}"
            # Another run may have kept it meanwhile.
            with contextlib.suppress(OSError):
                target.parent.mkdir(parents=True, exist_ok=True)
                if not target.exists():
                    shutil.move(mirror.root / addition.path, making)
                    os.rename(making, target)
                    # The run's files may be kept, too.
                    (mirror.root / addition.path).symlink_to(target)
                    with open(self._folder / INDEX, "a", encoding="utf-8") as file:
                        file.write(f"{addition.path}\n")
                    kept.append(addition)
        return kept


def _additions(mirror: Mirror, folder: Path, before_ns: int) -> Iterator[Addition]:
    """Yields the topmost additions below a folder of the mirror, given by its path in it."""
    with contextlib.suppress(OSError), os.scandir(mirror.root / folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            path = folder / entry.name
            if entry.is_symlink() or entry.name.startswith(".making-"):
                continue
            is_new = not os.path.lexists(mirror.top.parent / path)
            num_bytes = _complete_bytes(Path(entry.path), before_ns) if is_new else None
            if num_bytes is not None and num_bytes >= MIN_BYTES:
                yield Addition(path, num_bytes)
            elif entry.is_dir() and num_bytes is None:
                yield from _additions(mirror, path, before_ns)


def _complete_bytes(path: Path, before_ns: int) -> int | None:
    """Returns the size of a file, or of all below a folder; None if something is newer."""
    status = os.lstat(path)
    if stat.S_ISREG(status.st_mode):
        return None if status.st_ctime_ns > before_ns else status.st_size
    if not stat.S_ISDIR(status.st_mode):
        return None
    total = 0
    for name in os.listdir(path):
        size = _complete_bytes(path / name, before_ns)
        if size is None:
            return None
        total += size
    return total
