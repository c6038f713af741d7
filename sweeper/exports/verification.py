"""Stores what was verified about the changes of a tune's winner together (verification.json of its trial)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sweeper.core import schema_1
from sweeper.core.codec import decode, encode
from sweeper.core.record import TrialRecord
from sweeper.system.files import read_json, reading, write_json

FILE = "verification.json"
FILE_OF_SCHEMA_1 = "proof.json"
"""File in the folder of the sweep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedChange:
    """A change of the winner.

    Attributes:
        original: Its value that leaves the script as it is.
        why: One line on what it saves.
    """

    name: str
    value: str
    original: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """How a training with all changes compares with the script's own.

    Attributes:
        kind: `exact`, `close` or `other draws`.
        is_nondeterministic: Whether two runs of the unchanged script differ, too.
        difference: How the training differs; empty if it is the same.
        extent: What the recorded runs cover, in words.
        code: Digest of the scripts that the command names.
    """

    kind: str
    changes: tuple[VerifiedChange, ...]
    is_nondeterministic: bool
    difference: str
    extent: str
    code: str


def write(record: TrialRecord, verification: Verification) -> None:
    """Writes the verification of a trial's changes."""
    write_json(Path(record.folder) / FILE, encode(verification))


def remove(record: TrialRecord) -> None:
    """Removes the verification of a trial's changes, if there is one."""
    (Path(record.folder) / FILE).unlink(missing_ok=True)


def read(record: TrialRecord) -> Verification | None:
    """Returns the verification of a trial's changes; None if there is none.

    Raises:
        EnvironmentStopError: Its file is damaged.
    """
    folder = Path(record.folder)
    path = next(
        (path for path in (folder / FILE, folder.parent.parent / FILE_OF_SCHEMA_1) if path.exists()), None
    )
    if path is None:
        return None
    with reading(path, "Restore it, or remove it and run the same command again"):
        tree = read_json(path)
        if path.name == FILE_OF_SCHEMA_1:
            tree = schema_1.verification(tree, record.number)
        verification = None if tree is None else decode(Verification, tree)
    return verification
