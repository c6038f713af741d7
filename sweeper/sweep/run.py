"""`sweeper run`: open the folder, set up, supervise, and leave everything shown and closed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.core.errors import UserError
from sweeper.core.job import Job
from sweeper.core.measurement import Outcome, Report
from sweeper.execution.inline import InlineLauncher
from sweeper.execution.launcher import Launcher
from sweeper.execution.local import LocalLauncher, leftovers
from sweeper.spec import SweepSpec
from sweeper.sweep import setup
from sweeper.sweep.confirming import confirm
from sweeper.sweep.fingerprint import fingerprint, import_paths, prepared_folder
from sweeper.sweep.journal import Journal
from sweeper.sweep.loading import LoadedSweep, load_sweep, varied
from sweeper.sweep.lock import SweepLock
from sweeper.sweep.observer import Observer
from sweeper.sweep.opening import cannot_write, open_sweep
from sweeper.sweep.publishing import Publisher, view_of
from sweeper.sweep.runner import JobRunner, Slot
from sweeper.sweep.supervisor import Supervisor
from sweeper.tracking import SweepInfo, Tracker


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command `run` came to.

    Attributes:
        ran: False where the sweep had ended before, and nothing was run.
        pending: How many runs are not yet shown by the tracker, and why.
    """

    journal: Journal
    ran: bool
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
    launch: Callable[[Path], Launcher] | None = None,
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
        return _run(home, journal, lock, spec, marks, tracker, observer, launch)
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
    with contextlib.closing(Publisher(tracker, _info(journal, begun, marks, about))) as publisher:
        return dataclasses.replace(_published(load_sweep(journal), publisher), ran=False)


def _count(journal: Journal) -> int:
    return sum(1 for entry in journal.trials() if entry.outcome is not None)


def _run(
    home: Path,
    journal: Journal,
    lock: SweepLock,
    spec: SweepSpec,
    marks: Mapping[str, Any],
    tracker: Tracker,
    observer: Observer,
    launch: Callable[[Path], Launcher] | None,
) -> Ran:
    began = time.monotonic()
    _end_leftovers(journal)
    prepared = prepared_folder(home, spec)
    launcher = launch(journal.folder) if launch else _launcher(journal, spec)
    with contextlib.closing(launcher):
        runner = JobRunner(launcher, [Slot("auto"), Slot("auto")], lambda: None)
        runner.start(0, journal.setup_folder("probe"), setup.probe_job(spec))
        runner.start(1, journal.setup_folder("prepare"), setup.prepare_job(spec, prepared, import_paths()))
        outcomes: dict[int, Outcome | Report] = {}
        while len(outcomes) < 2:
            outcomes.update({key: outcome for key, _, outcome in runner.wait()})
        machine = setup.machine_of(setup.report_of(outcomes[0], "the probe of the device"), spec)
        data = setup.report_of(outcomes[1], "preparing the data")
        observer.line(f"Running on {machine.line}.")
        for note in data["notes"]:
            observer.line(note)
        about = {"device": machine.line, "synthetic": data["synthetic"], "notes": list(data["notes"])}
        begun_spec = spec
        spec, lines = setup.restricted(spec, machine, data)
        for line in lines:
            observer.line(line)
        if not journal.begun:
            journal.begin(begun_spec, marks, about)
        publisher = Publisher(tracker, _info(journal, begun_spec, marks, about))
        publisher.open()
        template = Job(
            uid="",
            pipeline=spec.pipeline,
            import_paths=import_paths(),
            data=spec.to_dict()["data"],
            prepared=str(prepared),
            cache=str(home.resolve() / "cache" / "compile"),
        )
        supervisor = Supervisor(
            journal=journal,
            lock=lock,
            spec=spec,
            machine=machine,
            launcher=launcher,
            publisher=publisher,
            observer=observer,
            template=template,
            varied=varied(begun_spec),
            began=began,
        )
        with contextlib.closing(publisher):
            supervisor.run(confirm)
            return _published(load_sweep(journal), publisher)


def _launcher(journal: Journal, spec: SweepSpec) -> Launcher:
    if spec.execution.launcher == "inline":
        return InlineLauncher()
    return LocalLauncher(journal.folder, isolation=spec.execution.isolation)


def _end_leftovers(journal: Journal) -> None:
    """Ends what an earlier supervisor of this sweep left running; the lock says that it is gone."""
    deadline = time.monotonic() + 15
    while left := leftovers(journal.folder):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise UserError(f"processes {left} of an earlier run of {journal.name!r} cannot be ended.")
        time.sleep(0.05)


def _info(journal: Journal, spec: SweepSpec, marks: Mapping[str, Any], about: Mapping[str, Any]) -> SweepInfo:
    return SweepInfo(
        name=journal.name,
        device=about["device"],
        fingerprint=str(marks["code"]),
        pipeline=spec.pipeline,
        data=", ".join(f"{key}: {value}" for key, value in spec.data.items()),
        synthetic=about["synthetic"],
        varied=varied(spec),
    )


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
