"""Stores what a tune finds before its sweep, so that the same command continues an interrupted one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.core.codec import DecodeError, decode, encode
from sweeper.core.measurement import Measurement
from sweeper.system.files import write_json
from sweeper.tuning.changes import ChangeValue

FOLDER = "tunes"


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneState:
    """The facts known before the search.

    Attributes:
        key: Identifies the command, its files and the options.
        watched: Measurement of the unchanged script.
        changes: Changes that are tried or refused; empty before the proofs.
    """

    key: str
    watched: Measurement
    changes: Sequence[ChangeValue] = ()


def read(home: Path, name: str, key: str) -> TuneState | None:
    """Returns the facts that an earlier run of the same command found; None if there are none."""
    try:
        tree: Mapping[str, Any] = json.loads(_path(home, name).read_text(encoding="utf-8"))
        if tree.get("key") != key:
            return None
        return TuneState(
            key=key,
            watched=decode(Measurement, tree["watched"]),
            changes=tuple(decode(ChangeValue, each) for each in tree["changes"]),
        )
    except (OSError, ValueError, KeyError, DecodeError):
        return None


def write(home: Path, name: str, known: TuneState) -> None:
    """Writes the facts atomically."""
    path = _path(home, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, encode(known))


def _path(home: Path, name: str) -> Path:
    return home / FOLDER / f"{name}.json"
