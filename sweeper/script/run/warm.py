"""Stores what a trial of a script shows before its first window, for a race that decides what runs next."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeper.core.codec import decode, encode
from sweeper.core.measurement import Measurement
from sweeper.race.record import Record
from sweeper.script.inside.recorder import RECORD
from sweeper.system.files import read_json, write_json

WARM = "warm.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmProcess:
    """A process of a race, once its first steps are recorded.

    Attributes:
        measurement: Its speed so far, and the parts of a step as the host sees them; 0 before it is warm.
        changes: For each change at run time that was reported, why it is not in effect; empty if it is.
        memory_gib: Memory of its processes in GiB, what they share counted once; 0 if unknown.
        foreign_cores: Number of its cores that other programs kept busy while it became warm; 0 if unknown.
    """

    measurement: Measurement
    changes: Mapping[str, str] = field(default_factory=dict)
    memory_gib: float = 0.0
    foreign_cores: float = 0.0


def write_warm(folder: Path, warm: WarmProcess) -> None:
    """Writes the file atomically."""
    write_json(folder / WARM, encode(warm))


def read_warm(folder: Path) -> WarmProcess | None:
    """Returns what is in the file; None if there is none."""
    try:
        return decode(WarmProcess, read_json(folder / WARM))
    except FileNotFoundError:
        return None


def read_record(folder: Path) -> Record:
    """Returns the record in a job's folder."""
    warm = read_warm(folder)
    changes = warm.changes if warm is not None else {}
    events = {path.stem: _events(path) for path in sorted(folder.glob(RECORD.format("*")))}
    failure = "" if any(events.values()) else "its training was not observed"
    return Record(events=events, changes=changes, failure=failure)


def _events(path: Path) -> list[Mapping[str, Any]]:
    events: list[Mapping[str, Any]] = []
    for line in path.read_text(encoding="ascii").splitlines():
        with suppress(ValueError):
            # The last line may have been cut off.
            events.append(json.loads(line))
    return events
