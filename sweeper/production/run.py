"""Runs `sweeper train`: prepares the data, trains in a worker, watches it and judges its speed."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.core.job import LOG, OUTCOME, PREPARE_RUNNER, PROBE_RUNNER, TRAINING_RUNNER, Job, MeasurePlan
from sweeper.core.measurement import DeviceInfo, Failure, FailureKind, Outcome, Report
from sweeper.core.modules import import_paths
from sweeper.core.training import STOP
from sweeper.errors import EnvironmentStopError, SweeperError, UserError
from sweeper.launch.local import LocalLauncher
from sweeper.production.folder import RunFolder, open_run
from sweeper.production.promise import Judgement, assess
from sweeper.production.publish import RunPublisher
from sweeper.production.request import RunRequest
from sweeper.production.watch import Watch, Watcher
from sweeper.race.drift import Block
from sweeper.race.tally import SINGLE_VARIANCE
from sweeper.schema.data_path import on_this_machine
from sweeper.sweep.folder.catalog import find_sweep
from sweeper.sweep.folder.fingerprint import digest_of_code, prepared_folder
from sweeper.sweep.folder.machine_record import MachineRecord, speed_key
from sweeper.sweep.job_runner import JobRunner, Slot
from sweeper.sweep.start.bootstrap import end_earlier_run
from sweeper.sweep.start.setup import NO_WINDOWS, build_of, devices_of, probe_report, report_of
from sweeper.sweep.stopping import StopHandler
from sweeper.system.environment import OF_A_RUN, held_back_line
from sweeper.system.files import write_atomic
from sweeper.telemetry.gpu_advice import Build, gpu_lines, why_unused
from sweeper.tracking.mlflow import MlflowTracker

NEVER_SECONDS = 1e9
PREPARE_SECONDS = 3600.0
GRACE_SECONDS = 20.0
"""Seconds for a last checkpoint after SIGTERM. Schedulers kill after about 30 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """The result of a production run.

    Attributes:
        path: Its folder.
        values: The trainer's report.
        was_run: False if it had finished before, and nothing was run.
        pending: Why MLflow is not up to date; empty if it is.
    """

    path: Path
    values: Mapping[str, Any]
    judgement: Judgement
    was_run: bool
    pending: str


def train(
    home: Path,
    wanted: RunRequest,
    tracker: MlflowTracker,
    watcher: Watcher,
    *,
    device: str = "auto",
    new: bool = False,
) -> TrainResult:
    """Starts or resumes the requested run, and trains it to its end.

    Args:
        device: `auto`, `cpu`, or `cuda:N`.
        new: Whether to start another run even if there is one.

    Raises:
        SweeperError: The run cannot start, or training failed; the latest checkpoint is kept.
    """
    folder = open_run(home, wanted, new=new)
    try:
        watch, publisher = Watch(folder, wanted, watcher), RunPublisher(tracker, folder, wanted)
        was_run = not folder.is_finished(wanted.training.max_seconds)
        if was_run:
            if folder.continued:
                watcher.line(f"Resuming `{folder.name}`.")
            outcome = _run(home, folder, wanted, device, watch, publisher)
            if isinstance(outcome, Failure):
                publisher.fail(outcome)
                raise _error_of(outcome, folder, new=new)
        report = folder.report()
        assert report is not None
        judgement = assess(report.values, wanted.promise, watch.disturbed_seconds())
        if was_run:
            remember(home, wanted, judgement, folder.name)
        pending = publisher.end(report, judgement)
        return TrainResult(
            path=folder.path, values=report.values, judgement=judgement, was_run=was_run, pending=pending
        )
    finally:
        folder.lock.release()


def remember(home: Path, wanted: RunRequest, judgement: Judgement, name: str) -> None:
    """Adds the speed to the machine's record if its sweep is in this home and the run was clean."""
    if wanted.promise is None or not judgement.reached or judgement.reasons:
        return
    try:
        sweep = find_sweep(home, wanted.sweep).read_sweep_file()
        is_same = sweep["fingerprint"].get("code") == digest_of_code(wanted.pipeline)
    except SweeperError:
        return
    if not is_same:
        # A speed that changed with the code is not drift of the machine.
        return
    key = speed_key(sweep["fingerprint"], wanted.config)
    # One process, not the mean of several.
    speeds = {key: (math.log(judgement.reached), SINGLE_VARIANCE / 2)}
    block = Block(at=time.time(), of=f"{name}/train", speeds=speeds)
    MachineRecord(home, sweep["about"]["device"]).add(block)


def _run(
    home: Path, folder: RunFolder, wanted: RunRequest, device: str, watch: Watch, publisher: RunPublisher
) -> Outcome | Report:
    """Runs the job, which resumes from the latest checkpoint, and returns its outcome."""
    folder.reopen()
    (folder.path / STOP).unlink(missing_ok=True)
    folder.forget_uncommitted()
    end_earlier_run(folder.path)
    if line := held_back_line(os.environ, wanted.pass_env, **OF_A_RUN):
        watch.watcher.line(line)
    started = LocalLauncher(folder.path, pass_env=wanted.pass_env)
    with contextlib.closing(started) as launcher, StopHandler() as stopping:
        job = _prepare_job(home, folder, wanted, launcher, device, watch.watcher)

        def tick() -> None:
            watch.look()
            publisher.look()
            if stopping.is_requested:
                write_atomic(folder.path / STOP, "")

        # The job sets its own device; a runner's slots are for sweeps.
        runner = JobRunner(launcher, [Slot(job.device)], tick)
        try:
            return runner.run(folder.job, job)
        except KeyboardInterrupt:
            raise
        except BaseException:
            _let_it_save(folder)
            raise
        finally:
            watch.close()


def _let_it_save(folder: RunFolder) -> None:
    """Stops the trainer and waits at most `GRACE_SECONDS` for a last checkpoint."""
    write_atomic(folder.path / STOP, "")
    deadline = time.monotonic() + GRACE_SECONDS
    while not (folder.job / OUTCOME).exists() and time.monotonic() < deadline:
        time.sleep(0.1)


def _prepare_job(
    home: Path, folder: RunFolder, wanted: RunRequest, launcher: LocalLauncher, device: str, watcher: Watcher
) -> Job:
    """Prepares the data, finds the device and returns the training job.

    Raises:
        UserError: The data or the code cannot be used, or there is no such device.
        EnvironmentStopError: The machine cannot run it.
    """
    prepared = prepared_folder(home, wanted.pipeline, wanted.data)
    job = Job(
        uid=folder.uid,
        runner=TRAINING_RUNNER,
        pipeline=wanted.pipeline,
        import_paths=import_paths(),
        data=on_this_machine(wanted.data, watcher.line),
        prepared=str(prepared),
        config=wanted.config,
        training=dataclasses.replace(wanted.training, folder=str(folder.path.resolve())),
        cache=str(home.resolve() / "cache" / "compile"),
        timeout_seconds=NEVER_SECONDS,
        stall_seconds=wanted.training.stall_seconds,
        stage="production",
    )
    probe, preparation = _probe_and_prepare(launcher, folder, job, "cpu" if device == "cpu" else "auto")
    for note in preparation["notes"]:
        watcher.line(note)
    build = build_of(probe)
    devices = _pick_devices(devices_of(probe), device, wanted, build)
    if device != "cpu":
        uuids = [info.uuid for info in devices]
        for line in gpu_lines(build, on_gpu=devices[0].kind == "cuda", only=uuids):
            watcher.line(line)
    count = f"{len(devices)} x " if len(devices) > 1 else ""
    watcher.line(f"Training on {count}{devices[0].name}.")
    return dataclasses.replace(
        job,
        device=",".join(info.uuid or "cpu" for info in devices),
        plan=MeasurePlan(repeats=0, quiet_canary_ms=probe["canary_ms"]),
    )


def _probe_and_prepare(
    launcher: LocalLauncher, folder: RunFolder, job: Job, device: str
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Probes the device while it prepares the data of `job`; returns both reports."""
    tasks = (
        Job(uid="probe", runner=PROBE_RUNNER, plan=NO_WINDOWS, timeout_seconds=PREPARE_SECONDS),
        dataclasses.replace(
            job, uid="prepare", runner=PREPARE_RUNNER, plan=NO_WINDOWS, timeout_seconds=PREPARE_SECONDS
        ),
    )
    setup = folder.path / "setup"
    runner = JobRunner(launcher, [Slot(device), Slot(device)], lambda: None)
    for number, task in enumerate(tasks):
        (setup / task.uid / OUTCOME).unlink(missing_ok=True)
        runner.start(number, setup / task.uid, task)
    reports: dict[int, Mapping[str, Any]] = {}
    while runner.running:
        for number, _, outcome in runner.wait():
            log = setup / tasks[number].uid / LOG
            is_probe = tasks[number].runner == PROBE_RUNNER
            reports[number] = (
                probe_report(outcome) if is_probe else report_of(outcome, "preparing the data", log=log)
            )
    return reports[0], reports[1]


def _pick_devices(
    devices: list[DeviceInfo], device: str, wanted: RunRequest, build: Build | None
) -> list[DeviceInfo]:
    """Returns the devices to train on: `device.count` of them, starting at `device`."""
    if devices[0].kind != "cuda":
        if device.startswith("cuda"):
            why = why_unused(build) or "this machine has none"
            raise UserError(f"`--device` needs a GPU, but got {device!r}: {why}; or use `--device cpu`.")
        return devices[:1]
    first, count = int(device.partition(":")[2] or 0), wanted.config.device.count
    if first + count > len(devices):
        raise UserError(
            f"`device.count` needs {count} GPUs from cuda:{first} on, but this machine has {len(devices)}."
            " Lower one of the two."
        )
    return devices[first : first + count]


def _error_of(failure: Failure, folder: RunFolder, *, new: bool) -> Exception:
    message = f"{failure.message} ({failure.kind}); see {folder.job / 'worker.log'}"
    # With --new, it would start another run.
    kept = f"; the same command{' without --new' if new else ''} resumes from the latest checkpoint"
    if failure.kind is FailureKind.NON_FINITE:
        kept = "; the same command would fail again: try `--set config.optimizer.lr=... --new`"
    elif not folder.committed_bytes():
        kept = ""
    if failure.kind in (FailureKind.USER_ERROR, FailureKind.UNSUPPORTED, FailureKind.DATA_TOO_SMALL):
        return UserError(f"{message}.")
    return EnvironmentStopError(f"training ended: {message}{kept}.")
