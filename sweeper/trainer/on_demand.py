"""Windows on demand: a trial stays warm and waits until each of its windows is requested.

Two files in a folder contain a number each: `ready`, how many windows the waiting trial has taken,
and `go`, how many it may take. After its last window it does not wait.
"""

from __future__ import annotations

import time
from pathlib import Path

from sweeper.system.files import write_atomic

READY, GO = "ready", "go"
POLL_SECONDS = 0.05
"""Waiting trials poll while another one is timed, so rarely that it costs nothing."""


def number_in(path: Path) -> int | None:
    """Returns the number in a file; None while it does not exist."""
    try:
        return int(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        return None


class Turns:
    """The trial's side."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def wait(self, taken: int) -> None:
        """Reports the number of windows taken, and waits until another is requested."""
        write_atomic(self._folder / READY, str(taken))
        while (number_in(self._folder / GO) or 0) <= taken:
            time.sleep(POLL_SECONDS)
