"""`sweeper run`: open the folder, set up, supervise, and leave everything shown and closed."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.spec import SweepSpec
from sweeper.sweep import setup
from sweeper.sweep.fingerprint import fingerprint
from sweeper.sweep.journal import Journal
from sweeper.sweep.loading import LoadedSweep, load_sweep
from sweeper.sweep.observer import Observer
from sweeper.sweep.opening import cannot_write, open_sweep
from sweeper.sweep.phases import run_phases
from sweeper.sweep.publishing import Publisher, view_of
from sweeper.sweep.starting import Launch, info_of, supervised
from sweeper.tracking import Tracker


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command `run` came to.

    Attributes:
        ran: False where the sweep had ended before, and nothing was run.
        stopped: It was asked to stop, and can be continued.
        pending: How many runs are not yet shown by the tracker, and why.
    """

    journal: Journal
    ran: bool
    stopped: bool = False
    pending: int = 0
    problem: str = ""


def run_sweep(
    home: Path,
    spec: SweepSpec,
    tracker: Tracker,
    observer: Observer,
    *,
    new: bool = False,
    extend: int = 0,
    launch: Launch | None = None,
) -> Ran:
    """Runs a sweep to its end, or continues it.

    Args:
        new: Begin another sweep, whatever is there under this name.
        extend: Trials to add to a sweep that has ended.
        launch: Makes, from the sweep's folder, what its jobs run on; in place of what
            `execution.launcher` names.

    Raises:
        SweeperError: As its classes say; what was measured is kept.
    """
    marks = fingerprint(spec, setup.device_model(spec.execution.gpus))
    journal, lock = open_sweep(home, spec, marks, observer, new=new)
    try:
        if journal.begun:
            begun = SweepSpec.from_dict(journal.read()["spec"])
            if journal.result() is not None:
                if not extend:
                    return _shown(journal, begun, marks, tracker)
                journal.reopen(_searched(journal) + extend)
            elif extend:
                observer.line(f"`{journal.name}` has not ended yet, so --extend adds nothing now.")
            spec = _extended(journal, spec)
            observer.line(f"Continuing `{journal.name}`: {_count(journal)} trials are done.")
        with supervised(home, journal, lock, spec, marks, tracker, observer, launch) as supervisor:
            run_phases(supervisor)
            stopped = supervisor.stopping.asked
            ran = _published(load_sweep(journal), supervisor.publisher)
            return dataclasses.replace(ran, stopped=stopped)
    except OSError as error:
        raise cannot_write(error, journal.folder) from error
    finally:
        # Before the lock is let go: what the next supervisor begins must not be removed.
        if not journal.begun:
            journal.remove()
        lock.release()


def _extended(journal: Journal, spec: SweepSpec) -> SweepSpec:
    """Returns the specification with the trials the sweep was extended to, and no limit in time."""
    trials = journal.raised_budget()
    if trials is None:
        return spec
    return spec.model_copy(
        update={"search": spec.search.model_copy(update={"trials": trials, "minutes": None})}
    )


def _searched(journal: Journal) -> int:
    return sum(1 for entry in journal.trials() if entry.job.stage == "search")


def _shown(journal: Journal, begun: SweepSpec, marks: Mapping[str, Any], tracker: Tracker) -> Ran:
    """Shows what the tracker did not take while the sweep ran; nothing is run."""
    about = journal.read()["about"]
    with contextlib.closing(Publisher(tracker, info_of(journal, begun, marks, about))) as publisher:
        return dataclasses.replace(_published(load_sweep(journal), publisher), ran=False)


def _count(journal: Journal) -> int:
    return sum(1 for entry in journal.trials() if entry.outcome is not None)


def _published(sweep: LoadedSweep, publisher: Publisher) -> Ran:
    """Shows every record as it stands at the end; what could not be shown before is tried again."""
    publisher.retry()
    stages, confirmed = sweep.stages(), sweep.confirmations()
    winner = (sweep.result or {}).get("winner")
    # `ratios` is sorted; a winner that is tied with a faster one still comes first.
    order = sorted(sweep.ratios(), key=lambda number: number != winner)
    for record in sweep.book.finished():
        number = record.number
        view = view_of(
            record,
            sweep.varied(),
            sweep.book.x_baseline(record),
            stage=stages[number],
            rank=order.index(number) + 1 if number in order else None,
            confirmation=confirmed.get(number),
        )
        publisher.publish(record, view)
    return Ran(sweep.journal, ran=True, pending=len(publisher.pending), problem=publisher.problem)
