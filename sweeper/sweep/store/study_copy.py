"""The copy of a sweep's study on the user's server (`storage:`), and where it is."""

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
"""In a sweep's folder: the copy's `storage` and its `name` there, which no other sweep's has."""
COPY_SECONDS = 600.0


def check_storage(spec: SweepSpec) -> None:
    """Makes sure that a study can be copied to where `storage` says.

    Raises:
        UserError: There is no driver for such a server.
    """
    if spec.storage:
        with_driver(spec.storage)


def mirror_of(journal: Journal, spec: SweepSpec) -> Mirror:
    """Returns what copies a sweep's study to where `storage` says, if it says so.

    Raises:
        UserError: There is no driver for such a server.
    """
    if not spec.storage:
        return NoMirror()
    # By its name and folder alone, a sweep would be taken for one that was there before it.
    name = _place(journal).get("name") or f"{journal.name}-{uuid.uuid4().hex[:8]}"
    write_json(journal.folder / STUDY, {"storage": spec.storage, "name": name})
    return StudyMirror(spec.storage, name, spec)


def copied(sweep: LoadedSweep, seconds: float = COPY_SECONDS) -> str:
    """Copies what lacks of the study of a sweep that does not run; returns why some still does, if so.

    Raises:
        UserError: There is no driver for such a server.
    """
    place = _place(sweep.journal)
    if not place:
        return ""
    mirror = StudyMirror(place["storage"], place["name"], sweep.spec)
    mirror.tell(sweep.table.results)
    return mirror.finish(seconds)


def differences_of_copy(sweep: LoadedSweep, seconds: float = 60.0) -> tuple[list[str], list[str]]:
    """Returns what the copy of a study lacks, and what it has beside what was told, a line each.

    Raises:
        UserError: There is no driver for such a server.
        StorageError: It cannot be reached, or takes longer than `seconds`.
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

    # Nothing ends a question to a server that hangs, Ctrl-C included.
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not found:
        raise StorageError(f"the study was not read within {seconds:g} s. Nothing was changed. Try again.")
    return found[0]


def place_of_copy(journal: Journal) -> str:
    """Returns where the copy of a study is, for people: without user and options."""
    scheme, _, rest = _place(journal)["storage"].partition("://")
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"


def _place(journal: Journal) -> Mapping[str, str]:
    """Returns `storage` and `name` of a study's copy; empty where there is none."""
    path = journal.folder / STUDY
    if not path.exists():
        return {}
    with ours(path, "Remove it: the study is copied anew"):
        found = read_json(path)
        place = {"storage": str(found["storage"]), "name": str(found["name"])}
    return place
