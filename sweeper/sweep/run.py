"""Runs a sweep: opens the folder, sets up, supervises, publishes, closes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.job import OUTCOME
from sweeper.spec import SweepSpec
from sweeper.sweep import setup
from sweeper.sweep.bootstrap import Launch, OpenSweep, supervised
from sweeper.sweep.observer import Observer
from sweeper.sweep.publish import MADE, Publisher, made_files, publish_sweep, sweep_info
from sweeper.sweep.store.catalog import cannot_write, open_sweep
from sweeper.sweep.store.fingerprint import fingerprint
from sweeper.sweep.store.journal import Journal
from sweeper.sweep.store.load import LoadedSweep, load_sweep
from sweeper.sweep.store.study_copy import check_storage, copied
from sweeper.sweep.supervisor import run_phases
from sweeper.system.files import write_json
from sweeper.tracking import Tracker

STUDY_SECONDS = 10.0
"""For which the study's copy is waited for at the end."""
STOPPED_SECONDS = 2.0
"""The same after Ctrl-C, where all has to end within some seconds."""

Finish = Callable[[LoadedSweep], Sequence[Path]]
"""Makes what belongs to a sweep that has ended, such as its report; returns the files' paths."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command `run` came to.

    Attributes:
        sweep: As its folder has it now.
        ran: False where the sweep had ended before, and nothing was run.
        stopped: It was asked to stop, and can be continued.
        pending: How many runs are not yet shown by the tracker, and why.
        study: Why the study's copy is not whole; empty where it is.
    """

    sweep: LoadedSweep
    ran: bool
    stopped: bool = False
    pending: int = 0
    problem: str = ""
    study: str = ""

    @property
    def journal(self) -> Journal:
        """The sweep's folder."""
        return self.sweep.journal


def run_sweep(
    home: Path,
    spec: SweepSpec,
    tracker: Tracker,
    observer: Observer,
    *,
    new: bool = False,
    extend: int = 0,
    launch: Launch | None = None,
    finish: Finish | None = None,
) -> Ran:
    """Runs a sweep to its end, or continues it.

    Args:
        new: Begin another sweep, whatever is there under this name.
        extend: Trials to add to a sweep that has ended.
        launch: Makes, from the sweep's folder, what its jobs run on; in place of what
            `execution.launcher` names.
        finish: Called once the sweep has a result; what it makes is shown with the winner. Its
            failure is told, and costs nothing else.

    Raises:
        SweeperError: As its classes say; what was measured is kept.
    """
    check_storage(spec)
    marks = fingerprint(spec, setup.device_model(spec.execution))
    try:
        journal, lock = open_sweep(home, spec, marks, observer, new=new)
    except OSError as error:
        raise cannot_write(error, home) from error
    try:
        if journal.begun:
            if journal.result() is not None:
                if not extend:
                    sweep = load_sweep(journal)
                    made = _made(sweep, finish, observer, anew=False)
                    with contextlib.closing(
                        Publisher(tracker, sweep_info(sweep), journal.folder)
                    ) as publisher:
                        ran = _ran(sweep, publish_sweep(sweep, publisher, made), ran=False)
                        return dataclasses.replace(ran, study=copied(sweep, STUDY_SECONDS))
                journal.reopen(_searched(journal) + extend)
            elif extend:
                observer.line(f"`{journal.name}` has not ended yet, so --extend adds nothing now.")
            spec = _extended(journal, spec)
            observer.line(f"Continuing `{journal.name}`: {_count(journal)} trials are done.")
        opened = OpenSweep(home=home, journal=journal, lock=lock, spec=spec, fingerprint=marks)
        with supervised(opened, tracker, observer, launch) as context:
            run_phases(context)
            stopped = context.stopping.asked
            sweep = load_sweep(journal)
            made = _made(sweep, finish, observer, anew=True)
            ran = _ran(sweep, publish_sweep(sweep, context.publisher, made), stopped=stopped)
            seconds = STOPPED_SECONDS if stopped else STUDY_SECONDS
            return dataclasses.replace(ran, study=context.mirror.finish(seconds))
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


def _count(journal: Journal) -> int:
    return sum(1 for _ in (journal.folder / "trials").glob(f"*/{OUTCOME}"))


def _ran(sweep: LoadedSweep, left: tuple[list[int], str], *, ran: bool = True, stopped: bool = False) -> Ran:
    numbers, problem = left
    return Ran(sweep, ran=ran, stopped=stopped, pending=len(numbers), problem=problem)


def _made(sweep: LoadedSweep, finish: Finish | None, observer: Observer, *, anew: bool) -> tuple[str, ...]:
    """Returns the files that belong to a sweep with a result; they are made where they are not there."""
    made = sweep.journal.folder / MADE
    if sweep.state != "finished":
        return ()
    if finish is not None and (anew or not made.exists()):
        try:
            paths = [path.resolve() for path in finish(sweep)]
        except Exception as error:
            observer.line(f"No report was made ({type(error).__name__}: {error}); the sweep itself is whole.")
            return ()
        inside = sweep.journal.folder
        relative = [path.relative_to(inside) if path.is_relative_to(inside) else path for path in paths]
        write_json(made, [str(path) for path in relative])
    return made_files(sweep)
