"""Takes windows on demand: a trial stays warm and waits until each of its windows is requested.

Two files in a folder contain one number each. `ready` is how many windows the waiting trial has taken.
`go` is how many it may take in total, or `END` if it is to take no more.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

from sweeper.system.files import write_atomic

READY, GO = "ready", "go"
END = -1
"""The number in `go` that ends the wait: no other window will be requested."""
POLL_SECONDS = 0.05
"""Seconds between two polls. Trials poll while another one is timed, so polling must cost nothing."""


def number_in(path: Path) -> int | None:
    """Returns the number in a file; None while it does not exist."""
    try:
        return int(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        return None


class Turn(Protocol):
    """Requests that a trial waits for between its windows."""

    def wait(self, taken: int) -> bool:
        """Reports the number of windows taken; returns whether to take another, once that is known."""


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
