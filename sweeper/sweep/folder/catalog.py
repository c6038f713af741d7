"""Finds the sweep folder that a command works on: a new one, one to continue, or a finished one."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sweeper.core.job import SCHEMA
from sweeper.core.measurement import Failure, Measurement
from sweeper.errors import SweepConflictError, UserError, did_you_mean
from sweeper.schema import SweepSpec
from sweeper.sweep.folder.fingerprint import differences
from sweeper.sweep.folder.journal import Journal, schema_of, sweeps_folder
from sweeper.sweep.folder.journal_of_schema_1 import JournalOfSchema1
from sweeper.sweep.folder.lock import SweepLock
from sweeper.sweep.observer import SweepObserver
from sweeper.system.files import cannot_write, make_folder

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Names of sweep folders: `SweepName` with an optional suffix; not a path."""


def open_sweep(
    home: Path, spec: SweepSpec, fingerprint: Mapping[str, Any], observer: SweepObserver, *, new: bool
) -> tuple[Journal, SweepLock]:
    """Returns the folder for `spec`, locked: `<name>`, or `<name>-2` if that is another sweep.

    Raises:
        SweepConflictError: Another process holds the sweep, or it is unfinished and has other settings.
        EnvironmentStopError: The folder cannot be written.
    """
    continued = None if new else find_continued(home, spec.name, fingerprint)
    if continued is not None:
        return continued, lock_of(continued)
    if not new and (latest := latest_sweep(home, spec.name)):
        require_schema(latest, "continue")
    for count in itertools.count(1):
        name = spec.name if count == 1 else f"{spec.name}-{count}"
        journal = journal_at(sweeps_folder(home) / name)
        if new and journal.folder.exists():
            continue
        lock = lock_of(journal)
        if not journal.has_begun:
            if count > 1:
                observer.line(f"`{spec.name}` is a different sweep, so this one is called `{name}`.")
            return journal, lock
        if journal.has_ended or journal.schema < SCHEMA:
            lock.release()
            continue
        if not any(isinstance(entry.outcome, Measurement) for entry in journal.trials()):
            observer.line(f"The earlier `{name}` has no measurements, so it starts over.")
            # Before the lock is released: the next supervisor's files must not be removed.
            journal.remove()
            lock.release()
            return journal, lock_of(journal)
        lock.release()
        changed = differences(journal.read_sweep_file()["fingerprint"], fingerprint)
        raise SweepConflictError(
            f"the sweep `{name}` is unfinished and was started with other settings ({'; '.join(changed[:4])}"
            f"{'; ...' if len(changed) > 4 else ''}). Nothing was changed. "
            "Undo the change to continue it, or add --new to start another sweep."
        )
    raise AssertionError("there is always another name")


def find_continued(home: Path, name: str, fingerprint: Mapping[str, Any]) -> Journal | None:
    """Returns the sweep that a run would continue, ended or not; None if it would begin one."""
    for journal in sweeps_of_name(home, name):
        if (
            journal.schema >= SCHEMA
            and not differences(journal.read_sweep_file()["fingerprint"], fingerprint)
            and not _baseline_failed(journal)
        ):
            return journal
    return None


def journal_at(folder: Path) -> Journal:
    """Returns the journal of a folder, whichever version has written it; the folder need not exist."""
    return JournalOfSchema1(folder) if schema_of(folder) == 1 else Journal(folder)


def sweeps_of_name(home: Path, name: str) -> Iterator[Journal]:
    """Yields the sweeps called `name`, `name-2` and so on that have begun."""
    for count in itertools.count(1):
        journal = journal_at(sweeps_folder(home) / (name if count == 1 else f"{name}-{count}"))
        if not journal.folder.exists():
            return
        if journal.has_begun:
            yield journal


def latest_sweep(home: Path, name: str) -> Journal | None:
    """Returns the last of the sweeps that `sweeps_of_name` yields; None if there is none."""
    return next(iter([*sweeps_of_name(home, name)][-1:]), None)


def require_schema(journal: Journal, verb: str) -> None:
    """Makes sure that this version has written a sweep.

    Args:
        verb: What is to be done with it.

    Raises:
        SweepConflictError: An earlier version has written it.
    """
    if line := line_of_schema_1(journal, verb):
        raise SweepConflictError(line)
    # A later one is refused as it is read.
    journal.read_sweep_file()


def line_of_schema_1(journal: Journal, verb: str) -> str:
    """Returns the line that refuses to continue, confirm or send a sweep of schema 1; empty for a later one.

    Args:
        verb: What is to be done with it.
    """
    if journal.schema >= SCHEMA:
        return ""
    another = " Add --new to begin another one." if verb == "continue" else ""
    return (
        f"`{journal.name}` was written by sweeper 0.2 or earlier, and only that version can {verb} it. This"
        f" one lists, shows, compares, reports and exports it.{another}"
    )


def _baseline_failed(journal: Journal) -> bool:
    """Returns whether the sweep's baseline has failed: users fix it and run the same command again."""
    first = next(journal.trials(), None)
    return first is not None and isinstance(first.outcome, Failure)


def lock_of(journal: Journal) -> SweepLock:
    """Takes the lock of a sweep, and returns it; makes the sweep's folder if there is none.

    If the folder cannot be written and the sweep has not begun, the folder is removed.

    Raises:
        SweepConflictError: Another process holds it.
        EnvironmentStopError: The folder cannot be written.
    """
    try:
        make_folder(journal.folder)
        return SweepLock(journal.folder)
    except OSError as error:
        if not journal.has_begun:
            journal.remove()
        raise cannot_write(error, journal.folder) from error


def find_sweep(home: Path, name: str) -> Journal:
    """Returns the folder of the sweep `name`.

    Raises:
        UserError: There is none; the message suggests a similar name.
    """
    journal = journal_at(sweeps_folder(home) / name)
    if not _NAME.fullmatch(name) or not journal.has_begun:
        names = [other.name for other in all_sweeps(home)]
        have = f" Known sweeps: {', '.join(names)}." if names else " `sweeper run SPACE.yaml` starts one."
        raise UserError(f"There is no sweep called {name!r} in {home}.{did_you_mean(name, names) or have}")
    return journal


def all_sweeps(home: Path) -> list[Journal]:
    """Returns the sweeps of a home, the latest first."""
    folder = sweeps_folder(home)
    if not folder.exists():
        return []
    journals = [journal for path in folder.iterdir() if (journal := journal_at(path)).has_begun]
    return sorted(journals, key=lambda journal: -(journal.folder / "sweep.yaml").stat().st_mtime)
