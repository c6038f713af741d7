"""Reads the JSON file that tells when what happened in which recording.

    {"files": [{"file": "rec1.txt", "label": "chew", "event_starts_sec": [10, 20, 30],
                "event_duration_sec": 2.0, "total_duration_sec": 60.0}, ...]}

It is what version 2 of guide 002's program reads. A recording may be named several times, with another label
each; `total_duration_sec` may be left out where it is sampled at `data.rate`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeGuard

from sweeper import UserError

NAME = "events_config.json"
"""Read where it is there, without being asked for."""


@dataclass(frozen=True, slots=True)
class Events:
    """What happens in a recording, as `(class, start, end)` in seconds, and how long it is, or 0.

    `whole` is the class of all of it, where there is no such list.
    """

    listed: tuple[tuple[str, float, float], ...] = ()
    seconds: float = 0.0
    label: str = ""

    @classmethod
    def whole(cls, label: str) -> Events:
        """Returns the events of a recording that is of one class."""
        return cls(label=label)

    def rate(self, samples: int) -> float:
        """Returns the samples a second of a recording of so many, or 0 where that is not known."""
        return samples / self.seconds if self.seconds else 0.0

    def spans(self, samples: int, rate: float, file: Path) -> tuple[list[tuple[str, int, int]], int]:
        """Returns `(class, first, end)` in samples, and how many events begin after the end.

        Raises:
            UserError: Events of two classes overlap.
        """
        if self.label:
            return [(self.label, 0, samples)], 0
        spans = sorted((round(start * rate), round(end * rate), label) for label, start, end in self.listed)
        inside = [(label, first, min(end, samples)) for first, end, label in spans if first < samples]
        for (label, _, end), (other, first, _) in pairwise(inside):
            if first < end and label != other:
                raise UserError(
                    f"Events of two classes must not overlap, but in {file} {other!r} begins at "
                    f"{first / rate:g} s, before {label!r} ends at {end / rate:g} s."
                )
        return inside, len(spans) - len(inside)


def read_events(
    root: Path, files: Sequence[Path], opt: Mapping[str, Any], notes: list[str]
) -> dict[Path, Events] | None:
    """Returns the events of each file, or None where there is no such list.

    Raises:
        UserError: The list was asked for and is not there, it breaks its rules, or no file is in it.
    """
    path = root / opt["events"]
    if not path.is_file():
        if opt["events"] not in ("", NAME):
            raise UserError(f"`data.events` must name a JSON file in {root}, but got {opt['events']!r}.")
        return None
    try:
        entries = json.loads(path.read_text(encoding="utf-8-sig"))["files"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} must be JSON with a list of `files`, but is not: {error}.") from None
    if not isinstance(entries, list):
        raise UserError(f"{path} must be JSON with a list of `files`, but `files` is no list.")
    found: dict[Path, Events] = {}
    absent = []
    for number, entry in enumerate(entries, 1):
        name, events = _events_of(entry, f"{path}, entry {number}")
        own = [file for file in files if file.name == name or str(file.relative_to(root)) == name]
        if len(own) > 1:
            raise UserError(
                f"{path}, entry {number}: {name!r} is the name of {len(own)} files; write FOLDER/{name}."
            )
        if not own:
            absent.append(name)
            continue
        before = found.get(own[0], Events())
        found[own[0]] = Events(before.listed + events.listed, events.seconds or before.seconds)
    if absent:
        notes.append(f"{len(absent)} files named in {opt['events']} are not there: {', '.join(absent[:3])}.")
    if not found:
        raise UserError(f"{path} must name the recordings in {root}, but names none that is there.")
    return found


def _events_of(entry: Any, where: str) -> tuple[str, Events]:
    """Returns an entry's file name and events; one without starts or without a duration has none."""
    if not isinstance(entry, Mapping):
        raise UserError(f"{where} must be an object with `file` and `label`, but got {entry!r}.")
    for key in ("file", "label"):
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            raise UserError(f"{where}: `{key}` must be a name, but got {entry.get(key)!r}.")
    starts, duration = entry.get("event_starts_sec") or [], entry.get("event_duration_sec")
    total = entry.get("total_duration_sec")
    if not isinstance(starts, list) or not all(_is_number(start) and start >= 0 for start in starts):
        raise UserError(f"{where}: `event_starts_sec` must be a list of seconds, but got {starts!r}.")
    for key, value in (("event_duration_sec", duration), ("total_duration_sec", total)):
        needed = key == "event_duration_sec" and starts
        if (value is not None or needed) and not (_is_number(value) and value > 0):
            raise UserError(f"{where}: `{key}` must be a number of seconds above 0, but got {value!r}.")
    label = entry["label"].strip()
    return entry["file"], Events(tuple((label, start, start + duration) for start in starts), total or 0.0)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value < float("inf")
