"""Makes temporary folders that are removed at the next start if the process that made them was killed."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sweeper.script.run.mirror import remove_tree
from sweeper.system.flock import take_lock

PREFIX, _MAKING = "sweeper-run-", "sweeper-making-"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yields a folder, and removes those of processes that were killed."""
    sweep()
    draft = Path(tempfile.mkdtemp(prefix=_MAKING))
    lock = os.open(draft, os.O_RDONLY | os.O_CLOEXEC)
    # The kernel unlocks it when this process ends, however that happens.
    take_lock(lock)
    folder = draft.rename(draft.with_name(PREFIX + draft.name.removeprefix(_MAKING)))
    try:
        yield folder
    finally:
        remove_tree(folder)
        os.close(lock)


def sweep() -> None:
    """Removes the folders that nobody holds."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        # Another user's may not be opened.
        with contextlib.suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    take_lock(lock, wait=False)
                    remove_tree(folder)
            finally:
                os.close(lock)
