"""Runs a sweep: opens the folder, sets up, supervises, publishes, closes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.job import OUTCOME
from sweeper.errors import UserError
from sweeper.schema import SweepSpec
from sweeper.sweep.folder.catalog import open_sweep
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.folder.load import LoadedSweep, load_sweep
from sweeper.sweep.observer import SweepObserver
from sweeper.sweep.publish import OUTPUTS, Publisher, made_files, publish_sweep, sweep_info
from sweeper.sweep.start import setup
from sweeper.sweep.start.bootstrap import Launch, OpenSweep, supervised
from sweeper.sweep.start.context import SweepContext
from sweeper.sweep.supervisor import run_phases
from sweeper.sweep.workloads import fingerprint
from sweeper.system.files import cannot_write, write_json, writing
from sweeper.system.installed import missing_line
from sweeper.tracking import Tracker

Phases = Callable[[SweepContext], None]
Finish = Callable[[LoadedSweep], Sequence[Path]]
"""Function that makes the files of a sweep that has ended, such as its report, and returns their paths."""


@dataclass(frozen=True, slots=True)
class SweepRun:
    """The result of the command `run`.

    Attributes:
        sweep: The sweep as loaded from its folder.
        was_run: False if the sweep had ended before, and nothing was run.
        stopped: Whether the user stopped it; it can be continued.
        pending: Number of runs that the tracker does not show yet; `problem` says why.
    """

    sweep: LoadedSweep
    was_run: bool
    stopped: bool = False
    pending: int = 0
    problem: str = ""

    @property
    def journal(self) -> Journal:
        """The sweep's folder."""
        return self.sweep.journal


def run_sweep(
    home: Path,
    spec: SweepSpec,
    tracker: Tracker,
    observer: SweepObserver,
    *,
    new: bool = False,
    extend: int = 0,
    launch: Launch | None = None,
    finish: Finish | None = None,
    phases: Phases = run_phases,
) -> SweepRun:
    """Runs a sweep to its end, or continues it.

    Args:
        new: Whether to begin another sweep, even if there is one of this name.
        extend: Number of trials to add to a sweep that has ended.
        launch: Function that makes the launcher for the sweep's folder, instead of the one that
            `execution.launcher` names.
        finish: Function that is called once the sweep has a result; its files are published with the winner.
            If it fails, the user gets a line, and the sweep is unaffected.
        phases: Function that runs all phases and writes the result to the folder.

    Raises:
        SweeperError: See its subclasses; what was measured is kept.
    """
    if spec.traits.is_of_changes and phases is run_phases:
        raise UserError(
            "`workload: changes` is a race of changes, but this is a search. Run `sweeper tune -- COMMAND`."
        )
    marks = fingerprint(spec, setup.device_model(spec.execution))
    with writing(home):
        journal, lock = open_sweep(home, spec, marks, observer, new=new)
    try:
        if journal.has_begun:
            has_ended = journal.has_ended
            if has_ended and not extend:
                return _publish_ended(journal, spec, tracker, observer, finish)
            if has_ended:
                journal.reopen(sum(1 for _ in journal.searched_trials()) + extend)
            elif extend:
                observer.line(f"`{journal.name}` has not finished yet, so --extend has no effect.")
            spec = _with_extension(journal, spec)
            observer.line(f"Continuing `{journal.name}`: {journal.num_trials(OUTCOME)} trials are done.")
        opened = OpenSweep(home=home, journal=journal, lock=lock, spec=spec, fingerprint=marks)
        with supervised(opened, tracker, observer, launch) as context:
            phases(context)
            stopped = context.stopping.is_requested
            sweep = load_sweep(journal)
            files = _make_files(sweep, finish, observer, remake=True)
            done = _sweep_run(sweep, publish_sweep(sweep, context.publisher, files), stopped=stopped)
        _copy_study(done, spec, observer)
        return done
    except OSError as error:
        raise cannot_write(error, journal.folder) from error
    finally:
        # Before the lock is released: the next supervisor's files must not be removed.
        if not journal.has_begun:
            journal.remove()
        lock.release()


def _publish_ended(
    journal: Journal, spec: SweepSpec, tracker: Tracker, observer: SweepObserver, finish: Finish | None
) -> SweepRun:
    """Publishes what the tracker lacks of a sweep that has ended; nothing is run."""
    sweep = load_sweep(journal)
    if spec.production != sweep.spec.production:
        observer.line(
            f"`{journal.name}` has ended, so its summary shows the `production` that it began"
            " with. --new starts another sweep."
        )
    paths = _make_files(sweep, finish, observer, remake=False)
    with contextlib.closing(Publisher(tracker, sweep_info(sweep), journal.folder)) as publisher:
        done = _sweep_run(sweep, publish_sweep(sweep, publisher, paths), was_run=False)
    _copy_study(done, spec, observer)
    return done


def _with_extension(journal: Journal, spec: SweepSpec) -> SweepSpec:
    """Returns the specification; after an extension, with the new number of trials and no time limit."""
    trials = journal.raised_budget()
    if trials is None:
        return spec
    return spec.model_copy(
        update={"search": spec.search.model_copy(update={"trials": trials, "minutes": None})}
    )


def _sweep_run(
    sweep: LoadedSweep, left: tuple[list[int], str], *, was_run: bool = True, stopped: bool = False
) -> SweepRun:
    numbers, problem = left
    return SweepRun(sweep, was_run=was_run, stopped=stopped, pending=len(numbers), problem=problem)


def _copy_study(done: SweepRun, spec: SweepSpec, observer: SweepObserver) -> None:
    """Copies the study of a sweep that has ended to `storage`, if that is set; a line says if it cannot."""
    if spec.storage and done.sweep.state == "finished" and done.journal.study.exists():
        from sweeper.search import copy_study

        line = copy_study(done.journal.study, spec.storage, done.journal.name)
        if line:
            observer.line(line)


def _make_files(
    sweep: LoadedSweep, finish: Finish | None, observer: SweepObserver, *, remake: bool
) -> tuple[str, ...]:
    """Returns the files of a sweep with a result; makes them if they do not exist, or to `remake` them."""
    listing = sweep.journal.folder / OUTPUTS
    if sweep.state != "finished":
        return ()
    if finish is not None and (remake or not listing.exists()):
        try:
            paths = [path.resolve() for path in finish(sweep)]
        except Exception as error:
            why = missing_line(error) or f"{type(error).__name__}: {error}"
            observer.line(f"No report was made ({why}); the sweep itself is complete.")
            return ()
        inside = sweep.journal.folder
        relative = [path.relative_to(inside) if path.is_relative_to(inside) else path for path in paths]
        write_json(listing, [str(path) for path in relative])
    return made_files(sweep)
