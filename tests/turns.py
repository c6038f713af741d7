"""Has a test that measures run while no other does, of this run or of another of this user."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

_BASE = Path(tempfile.gettempdir()) / f"sweeper-tests-{os.getuid()}"
GATE, ROOM = (_BASE.with_suffix(suffix) for suffix in (".gate", ".room"))


@contextlib.contextmanager
def turn(*, is_alone: bool) -> Iterator[None]:
    """Waits until a test may run, and holds that until it has run."""
    # Whoever waits for the room to be empty holds the gate, so that nobody else enters.
    with GATE.open("ab") as gate, ROOM.open("ab") as room:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            # Processes that were forked have the descriptor as well: closing it is not enough.
            fcntl.flock(room, fcntl.LOCK_UN)
