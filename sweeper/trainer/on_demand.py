"""Takes windows on demand: a trial stays warm and waits until each of its windows is requested.

A trial writes the file `ready`: how many windows it has taken, and the last of them. The file `go` has one
number: how many it may take in total, `END` if it is to take no more, or `END_AT_ONCE` if there is no time
for what else it would do at its end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from sweeper.core.codec import decode, encode
from sweeper.core.measurement import Window
from sweeper.race.race import Taken
from sweeper.system.files import write_atomic

READY, GO = "ready", "go"
END, END_AT_ONCE = -1, -2
"""Numbers in `go` that end the wait: no other window will be requested."""
POLL_SECONDS = 0.02
"""Seconds between two polls. Trials poll while another one is timed, so polling must cost nothing."""


def read_ready(folder: Path) -> tuple[int, Window | None] | None:
    """Returns how many windows a trial has taken, and the last one; None until it is ready for the first."""
    try:
        num_windows, window = json.loads((folder / READY).read_text(encoding="ascii"))
    except FileNotFoundError:
        return None
    return num_windows, None if window is None else decode(Window, window)


def read_go(folder: Path) -> int:
    """Returns the number in `go`; 0 while it does not exist."""
    try:
        return int((folder / GO).read_text(encoding="ascii"))
    except FileNotFoundError:
        return 0


def turn_of(window: Window) -> Taken:
    """Returns a window as a turn of a race."""
    return window.seconds, window.steps, window.samples, window.foreign_cpu_seconds / window.seconds


class WindowRequests(Protocol):
    """Requests that a trial waits for between its windows."""

    @property
    def may_be_examined(self) -> bool:
        """Whether there is time to examine the training after its windows."""

    @property
    def is_withdrawn(self) -> bool:
        """Whether the window that was requested is not wanted any more."""

    def wait(self, windows: Sequence[Window]) -> bool:
        """Reports the windows taken; returns whether to take another, once that is known."""


class RequestFiles:
    """The trial's side of the two files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def may_be_examined(self) -> bool:
        """Whether there is time to examine the training after its windows."""
        return read_go(self._folder) == END

    @property
    def is_withdrawn(self) -> bool:
        """Whether the window that was requested is not wanted any more."""
        return read_go(self._folder) < 0

    def wait(self, windows: Sequence[Window]) -> bool:
        """Reports the windows taken; returns True once another is requested, False at the end."""
        last = encode(windows[-1]) if windows else None
        write_atomic(self._folder / READY, json.dumps([len(windows), last]))
        while 0 <= (wanted := read_go(self._folder)) <= len(windows):
            time.sleep(POLL_SECONDS)
        return wanted >= 0
