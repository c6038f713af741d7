"""Measures how long Python looks for garbage, and lists the objects that it looks at."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from typing import Any

MIN_SHARE = 0.005
"""Smallest share of the time that is reported."""


class CollectorClock:
    """Adds up the seconds in which Python looks for garbage.

    Attributes:
        seconds: Seconds so far.
    """

    def __init__(self) -> None:
        self.seconds = self._began_s = 0.0
        gc.callbacks.append(self._note)

    def _note(self, phase: str, info: Mapping[str, Any]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self._began_s = now
        else:
            self.seconds += now - self._began_s


def all_objects() -> list[Any]:
    """Returns all objects that Python looks at for garbage, frozen ones included."""
    if not gc.get_freeze_count():
        return gc.get_objects()
    gc.unfreeze()
    try:
        return gc.get_objects()
    finally:
        gc.freeze()
