"""Stores the log of a race as lines of JSON, one for each event, as soon as it happens."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeper.race.log import Added, Company, Ended, Event, Started, Turned, Verified, drop_unfinished

_KINDS: Mapping[str, type[Event]] = {
    "start": Started,
    "arm": Added,
    "verified": Verified,
    "company": Company,
    "turn": Turned,
    "end": Ended,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


class StoredLog(list[Event]):
    """The log of a race that goes on after its program was ended.

    Opened again, it has what counts of the events before: processes that had not ended are gone.
    """

    def __init__(
        self, path: Path, resume: Callable[[Sequence[Event]], Sequence[Event]] = drop_unfinished
    ) -> None:
        """Reads the events so far, if there are any.

        Args:
            resume: Returns what counts of a race that was cut off.
        """
        self._path = path
        super().__init__(resume(read(path)))
        if path.exists():
            aside = path.with_suffix(".part")
            aside.write_text("".join(map(_line, self)), encoding="utf-8")
            os.replace(aside, path)

    def append(self, event: Event) -> None:
        """Adds an event, here and in the file."""
        super().append(event)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_line(event))


def read(path: Path) -> list[Event]:
    """Returns the events in a file, without a last line that was cut off; none if there is no file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [_event(json.loads(line)) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _line(event: Event) -> str:
    return json.dumps({"event": _NAMES[type(event)], **dataclasses.asdict(event)}) + "\n"


def _event(tree: dict[str, Any]) -> Event:
    for name, value in tree.items():
        if isinstance(value, list):
            tree[name] = tuple(value)
    return _KINDS[tree.pop("event")](**tree)
