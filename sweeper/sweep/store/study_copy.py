"""Copies a sweep's study to the user's server (`storage:`), and stores the copy's place."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping

from sweeper.errors import StorageError
from sweeper.search import Mirror, NoMirror, StudyMirror, compare_study, with_driver
from sweeper.spec import SweepSpec
from sweeper.sweep.store.journal import Journal
from sweeper.sweep.store.load import LoadedSweep
from sweeper.system.files import ours, read_json, write_json

STUDY = "study.json"
"""File in a sweep's folder with the copy's `storage` and its unique `name` there."""
COPY_SECONDS = 600.0


def check_storage(spec: SweepSpec) -> None:
    """Checks that a study can be copied to `storage`.

    Raises:
        UserError: The driver for such a server is not installed.
    """
    if spec.storage:
        with_driver(spec.storage)


def mirror_of(journal: Journal, spec: SweepSpec) -> Mirror:
    """Returns a mirror that copies a sweep's study to `storage`, if that is set.

    Raises:
        UserError: The driver for such a server is not installed.
    """
    if not spec.storage:
        return NoMirror()
    # An earlier sweep may have had the same name and folder.
    name = _place(journal).get("name") or f"{journal.name}-{uuid.uuid4().hex[:8]}"
    write_json(journal.folder / STUDY, {"storage": spec.storage, "name": name})
    return StudyMirror(spec.storage, name, spec)


def copied(sweep: LoadedSweep, seconds: float = COPY_SECONDS) -> str:
    """Completes the copy of a sweep that is not running; returns why it is incomplete, if so.

    Raises:
        UserError: The driver for such a server is not installed.
    """
    place = _place(sweep.journal)
    if not place:
        return ""
    mirror = StudyMirror(place["storage"], place["name"], sweep.spec)
    mirror.tell(sweep.table.results)
    return mirror.finish(seconds)


def differences_of_copy(sweep: LoadedSweep, seconds: float = 60.0) -> tuple[list[str], list[str]]:
    """Returns a line for each result that the copy of a study lacks, and for each surplus trial.

    Raises:
        UserError: The driver for such a server is not installed.
        StorageError: The server cannot be reached, or takes longer than `seconds`.
    """
    place = _place(sweep.journal)
    if not place:
        return [], []
    found: list[tuple[list[str], list[str]]] = []
    failed: list[Exception] = []

    def look() -> None:
        try:
            found.append(compare_study(place["storage"], place["name"], sweep.table.results))
        except Exception as error:
            failed.append(error)

    # Nothing interrupts a request to a server that hangs, not even Ctrl-C, so it runs in a thread.
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not found:
        raise StorageError(f"the study was not read within {seconds:g} s. Nothing was changed. Try again.")
    return found[0]


def place_of_copy(journal: Journal) -> str:
    """Returns the place of a study's copy for display, without its user and options."""
    scheme, _, rest = _place(journal)["storage"].partition("://")
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"


def _place(journal: Journal) -> Mapping[str, str]:
    """Returns `storage` and `name` of a study's copy; empty if there is none."""
    path = journal.folder / STUDY
    if not path.exists():
        return {}
    with ours(path, "Remove it to copy the study again"):
        found = read_json(path)
        place = {"storage": str(found["storage"]), "name": str(found["name"])}
    return place
