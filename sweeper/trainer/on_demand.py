"""Windows on demand: a trial stays, warm, until each of its windows is asked for.

Two files in a folder, each with a number: `ready`, how many windows the trial has taken before it waited,
and `go`, how many it may take. After its last window it does not wait.
"""

from __future__ import annotations

import time
from pathlib import Path

from sweeper.system.files import write_atomic

READY, GO = "ready", "go"
POLL_SECONDS = 0.05
"""Those that wait look while another one is timed: rarely, so that it costs nothing."""


def number_in(path: Path) -> int | None:
    """Returns the number in a file; None while there is none."""
    try:
        return int(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        return None


class Turns:
    """The trial's side of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def wait(self, taken: int) -> None:
        """Says that so many windows are taken, and returns when another is asked for."""
        write_atomic(self._folder / READY, str(taken))
        while (number_in(self._folder / GO) or 0) <= taken:
            time.sleep(POLL_SECONDS)
