"""Starts a supervisor: ends leftovers, probes the device, prepares the data."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.core.job import LOG
from sweeper.core.measurement import Failure, Outcome, Report
from sweeper.errors import EnvironmentStopError
from sweeper.launch.launcher import Launcher
from sweeper.launch.local import end_leftovers
from sweeper.schema import SweepSpec
from sweeper.schema.data_path import on_this_machine
from sweeper.sweep.experiment import info_of, provenance
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.folder.load import varied_names
from sweeper.sweep.folder.lock import SweepLock
from sweeper.sweep.folder.past import past_line, read_past_sweep, store_past_sweep
from sweeper.sweep.job_runner import JobRunner, Slot
from sweeper.sweep.observer import SweepObserver
from sweeper.sweep.publish import Publisher
from sweeper.sweep.start import setup
from sweeper.sweep.start.context import SweepContext
from sweeper.sweep.start.gpu_memory import uuids_of
from sweeper.sweep.start.launchers import launcher_for
from sweeper.sweep.stopping import StopHandler
from sweeper.sweep.workloads import workload_of
from sweeper.system.failpoints import failpoint
from sweeper.system.installed import is_whole
from sweeper.telemetry.nvml.devices import awake
from sweeper.tracking import Tracker

Launch = Callable[[Path], Launcher]
"""Function that makes the launcher for a sweep's folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSweep:
    """A sweep whose folder is locked by this process.

    Attributes:
        spec: The specification as given.
        fingerprint: The parts that identify this sweep.
    """

    home: Path
    journal: Journal
    lock: SweepLock
    spec: SweepSpec
    fingerprint: Mapping[str, Any]


@contextlib.contextmanager
def supervised(
    sweep: OpenSweep,
    tracker: Tracker,
    observer: SweepObserver,
    launch: Launch | None,
    max_jobs: int | None = None,
) -> Iterator[SweepContext]:
    """Yields the context of an open sweep; a new sweep begins here.

    Args:
        launch: Replaces the launcher that `execution` names.
        max_jobs: Limit on concurrent jobs, in addition to that of `execution`.

    Raises:
        UserError: The data or the code cannot be used.
        EnvironmentStopError: The machine cannot run it.
    """
    journal, spec, work = sweep.journal, sweep.spec, workload_of(sweep.spec)
    began = time.monotonic()
    end_earlier_run(journal.folder)
    if not journal.has_begun:
        store_past_sweep(journal, sweep.home, spec, sweep.fingerprint)
    prepared = work.prepared_folder(spec, sweep.home)
    here = spec.model_copy(update={"data": on_this_machine(spec.data, observer.line)})
    launcher = launch(journal.folder) if launch else _launcher(sweep, observer, max_jobs)
    with contextlib.closing(launcher):
        machine, data = survey(launcher, journal.setup_folder(""), here, prepared)
        if spec.execution.is_remote:
            # The first worker's time in the queue is not part of the sweep's time.
            began = time.monotonic()
        possible, left = setup.restrict(here, machine, data)
        for line in (f"Running on {machine.line}.", *launcher.notes, *data["notes"], *left):
            observer.line(line)
        if not journal.has_begun:
            journal.begin(spec, sweep.fingerprint, _about(launcher, machine, data))
            failpoint("begun")
        past = read_past_sweep(journal)
        if past is not None:
            observer.line(past_line(past))
        info = info_of(journal, spec, sweep.fingerprint, journal.read_sweep_file()["about"])
        publisher = Publisher(tracker, info, journal.folder)
        publisher.open()
        cache = shared_cache(sweep.home)
        template = dataclasses.replace(
            work.template(possible, sweep.home), prepared=str(prepared), cache=str(cache)
        )
        gpus = uuids_of([slot.device for slot in machine.slots])
        with contextlib.closing(publisher), awake(gpus), StopHandler() as stopping:
            yield SweepContext(
                journal=journal,
                lock=sweep.lock,
                spec=possible,
                machine=machine,
                launcher=launcher,
                publisher=publisher,
                observer=observer,
                template=template,
                varied=varied_names(spec),
                began=began,
                stopping=stopping,
                past=past,
            )


def _launcher(sweep: OpenSweep, observer: SweepObserver, max_jobs: int | None) -> Launcher:
    journal = sweep.journal
    model = journal.read_sweep_file()["about"]["device_model"] if journal.has_begun else ""
    return launcher_for(journal.folder, sweep.spec, max_jobs=max_jobs, model=model, say=observer.line)


def _about(launcher: Launcher, machine: setup.Machine, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the facts about its machine and data that a sweep stores."""
    return {
        "device": machine.line,
        # The name that workers use: for a MIG instance, the driver's name and torch's differ.
        "device_model": launcher.model or machine.devices[0].name,
        "synthetic": data["synthetic"],
        "notes": list(data["notes"]),
        **provenance(),
    }


def shared_cache(home: Path) -> Path:
    """Returns the folder of compile caches and the like, which all trials of a home share."""
    return home.resolve() / "cache" / "compile"


def survey(
    launcher: Launcher, folder: Path, spec: SweepSpec, prepared: Path
) -> tuple[setup.Machine, Mapping[str, Any]]:
    """Probes the machine while it prepares the data; returns the machine and the report on the data.

    Args:
        folder: Folder that holds the folders of the two jobs.
        prepared: Folder of the prepared data, which may not exist yet; ignored if nothing is prepared.
    """
    if _lacks_torch(spec):
        return setup.machine_of(setup.values_without_torch(spec), spec), setup.NO_DATA
    device = "cpu" if spec.execution.gpus == 0 else "auto"
    runner = JobRunner(launcher, [Slot(device), Slot(device)], lambda: None)
    runner.start(0, folder / "probe", setup.probe_job(spec))
    if preparing := workload_of(spec).prepare_job(spec, prepared):
        runner.start(1, folder / "prepare", preparing)
    outcomes: dict[int, Outcome | Report] = {}
    while runner.running:
        outcomes.update({key: outcome for key, _, outcome in runner.wait()})
    elsewhere = spec.execution.is_remote
    machine = setup.machine_of(setup.probe_report(outcomes[0], elsewhere=elsewhere), spec)
    data = setup.NO_DATA
    if 1 in outcomes:
        log = prepared.with_name(prepared.name + ".log")
        if isinstance(outcomes[1], Failure):
            # The folder of a sweep that has not begun is removed, so the log is copied out of it.
            with contextlib.suppress(OSError):
                prepared.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(folder / "prepare" / LOG, log)
        data = setup.report_of(outcomes[1], "preparing the data", elsewhere=elsewhere, log=log)
    return machine, data


@contextlib.contextmanager
def launcher_to_try_out(spec: SweepSpec, launch: Launch | None) -> Iterator[tuple[Launcher, Path]]:
    """Yields a launcher of single jobs, and a temporary folder for them.

    Args:
        launch: Replaces the launcher that `execution` names.
    """
    with tempfile.TemporaryDirectory(prefix="sweeper-") as name:
        folder = Path(name)
        with contextlib.closing(
            launch(folder) if launch else launcher_for(folder, spec, max_jobs=1)
        ) as launcher:
            yield launcher, folder


def probe_machine(launcher: Launcher, folder: Path, spec: SweepSpec) -> setup.Machine:
    """Probes the machine with a job in `folder` and returns it."""
    if _lacks_torch(spec):
        return setup.machine_of(setup.values_without_torch(spec), spec)
    device = "cpu" if spec.execution.gpus == 0 else "auto"
    runner = JobRunner(launcher, [Slot(device)], lambda: None)
    outcome = runner.run(folder, setup.probe_job(spec))
    return setup.machine_of(setup.probe_report(outcome, elsewhere=spec.execution.is_remote), spec)


def _lacks_torch(spec: SweepSpec) -> bool:
    """Returns whether no probe can run on this machine, which needs torch and sweeper's trainer."""
    return not spec.execution.is_remote and not is_whole()


def end_earlier_run(folder: Path) -> None:
    """Ends what an earlier supervisor of `folder` left running; our lock shows that the supervisor is gone.

    Raises:
        EnvironmentStopError: Some processes cannot be ended.
    """
    if left := end_leftovers(folder):
        raise EnvironmentStopError(
            f"processes {left} of an earlier run of {folder.name!r} cannot be ended. Nothing was started. "
            "End them, or wait until their device responds, and run the same command again."
        )
