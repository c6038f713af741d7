"""Windows on demand: a trial stays warm and waits until each of its windows is requested.

Two files in a folder contain a number each: `ready`, how many windows the waiting trial has taken,
and `go`, how many it may take, or that no other will be wanted of it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

from sweeper.system.files import write_atomic

READY, GO = "ready", "go"
END = -1
"""In `go`: it is over."""
POLL_SECONDS = 0.05
"""Waiting trials poll while another one is timed, so rarely that it costs nothing."""


def number_in(path: Path) -> int | None:
    """Returns the number in a file; None while it does not exist."""
    try:
        return int(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        return None


class Turn(Protocol):
    """Requests that a trial waits for between its windows."""

    def wait(self, taken: int) -> bool:
        """Reports the number of windows taken; returns whether it is to take another, once that is known."""


class Turns:
    """The trial's side of the two files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def wait(self, taken: int) -> bool:
        """Reports the number of windows taken; returns True once another is requested, False at the end."""
        write_atomic(self._folder / READY, str(taken))
        while (wanted := number_in(self._folder / GO) or 0) <= taken and wanted != END:
            time.sleep(POLL_SECONDS)
        return wanted != END
