"""Records where a trial ran, and next to how many others (place.json)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from sweeper.core import schema_1
from sweeper.core.codec import decode, encode
from sweeper.system.files import read_json

PLACE = "place.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPlace:
    """The place where a trial ran.

    Attributes:
        host: The machine's name; empty where it is the supervisor's own.
        gpu: CUDA_VISIBLE_DEVICES of a cluster's worker; empty where there is none.
        job: The scheduler's number for the worker's job; empty where there is none.
        worker: The cluster's name for the worker.
        num_neighbours: The largest number of other trials of the sweep on the machine at the same time.
    """

    host: str = ""
    gpu: str = ""
    job: str = ""
    worker: str = ""
    num_neighbours: int = 0


def describe_place(place: TrialPlace) -> str:
    """Returns the place in words; empty if there is nothing to say."""
    parts = [
        place.host,
        f"GPU {place.gpu}" if place.gpu else "",
        f"job {place.job}" if place.job else "",
        f"alongside {place.num_neighbours} other{'s' if place.num_neighbours != 1 else ''}"
        if place.num_neighbours
        else "",
    ]
    return ", ".join(filter(None, parts))


def write_place(folder: Path, place: TrialPlace) -> None:
    """Writes `folder/place.json`, unless the trial had the supervisor's machine to itself."""
    if place != TrialPlace():
        # Not synced to disk: nothing depends on it, and a trial's outcome must not wait for it.
        (folder / PLACE).write_text(json.dumps(encode(place)), encoding="utf-8")


def read_place(folder: Path) -> TrialPlace:
    """Returns where the trial in `folder` ran; an unreadable file counts as none."""
    try:
        return decode(TrialPlace, schema_1.place(read_json(folder / PLACE)))
    except (OSError, ValueError, TypeError, KeyError):
        return TrialPlace()
