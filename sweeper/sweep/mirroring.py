"""The copy of a sweep's study on a server of the user's (`storage:`)."""

from __future__ import annotations

import re

from sweeper.search import Mirror, NoMirror, StudyMirror
from sweeper.spec import SweepSpec
from sweeper.sweep.journal import Journal
from sweeper.sweep.loading import LoadedSweep


def mirror_of(journal: Journal, spec: SweepSpec) -> Mirror:
    """Returns what copies a sweep's study to where `storage` says, if it says so.

    Raises:
        UserError: There is no driver for such a server.
    """
    return StudyMirror(spec.storage, journal.identity, spec) if spec.storage else NoMirror()


def finished(mirror: Mirror, journal: Journal, spec: SweepSpec, seconds: float = 10.0) -> str:
    """Waits for a study's copy; returns a line where it is not whole yet."""
    left = mirror.finish(seconds)
    shown = re.sub(r"[^/\s]*@", "", spec.storage)
    return f"The study at {shown}: {left}. `sweeper sync {journal.name}` copies what lacks." if left else ""


def copied(sweep: LoadedSweep, seconds: float = 60.0) -> str:
    """Copies the study of a sweep that does not run; returns a line where that did not work."""
    mirror = mirror_of(sweep.journal, sweep.spec)
    mirror.tell(sweep.book.told)
    return finished(mirror, sweep.journal, sweep.spec, seconds)
