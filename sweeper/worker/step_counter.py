"""A step counter in shared memory, so that counting a step needs no system call."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import Iterator

_BYTES = 16
_STEPS, _PAUSES = 0, 1


def make_counter() -> int:
    """Returns the descriptor of a counter at zero, for `SharedSteps` on both sides.

    Its size is sealed, so that a trial cannot crash the keeper by truncating it.
    """
    descriptor = os.memfd_create("sweeper-steps", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, _BYTES)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return descriptor


class SharedSteps:
    """Counts training steps (`sweeper.core.progress.Steps`) where another process can read them.

    One process writes; reads of an aligned word are atomic.
    """

    def __init__(self, descriptor: int) -> None:
        self._map = mmap.mmap(descriptor, _BYTES)
        self._cells = memoryview(self._map).cast("Q")

    @property
    def count(self) -> int:
        """Steps so far."""
        return self._cells[_STEPS]

    @property
    def is_paused(self) -> bool:
        """Whether the trial is deliberately taking no steps."""
        return self._cells[_PAUSES] > 0

    def add(self) -> None:
        """Counts a step."""
        self._cells[_STEPS] += 1

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Marks a section in which no steps are expected."""
        self._cells[_PAUSES] += 1
        try:
            yield
        finally:
            self._cells[_PAUSES] -= 1

    def close(self) -> None:
        """Unmaps the memory on this side only."""
        self._cells.release()
        self._map.close()
