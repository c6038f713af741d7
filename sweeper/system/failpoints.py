"""Defines points at which a test can kill the process; outside such a test, they do nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

CRASH_AT = "SWEEPER_CRASH_AT"
"""Variable with the path of a file that holds `point:count`: the process dies at the count-th `point`."""

SUPERVISOR_POINTS = (
    "begun",
    "asked",
    "placed",
    "submitted",
    "entered",
    "told",
    "studied",
    "sent",
    "marked",
    "finished",
    "put-aside",
)
KEEPER_POINTS = ("given", "ended", "committed")


def failpoint(point: str) -> None:
    """Kills this process if the file says so; passes are counted across all processes of a sweep."""
    path = os.environ.get(CRASH_AT)
    if path is None:
        return
    try:
        wanted, _, count = Path(path).read_text(encoding="utf-8").partition(":")
    except OSError:
        return
    if wanted != point:
        return
    if int(count) > 1:
        Path(path).write_text(f"{point}:{int(count) - 1}", encoding="utf-8")
        return
    Path(path).unlink()
    os.kill(os.getpid(), signal.SIGKILL)
