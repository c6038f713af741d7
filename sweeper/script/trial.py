"""The ways to run a script: for its speed, for its loss, for the record of its first steps, to its end."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

from sweeper import inject
from sweeper.core.codec import encode
from sweeper.core.job import Job
from sweeper.core.measurement import FailureKind, Measurement, Report
from sweeper.core.progress import Progress, TrialFailedError
from sweeper.race.record import Record
from sweeper.script.result import quality
from sweeper.script.running import RunningTrial
from sweeper.script.start import begun_again, started
from sweeper.script.warm import read_record
from sweeper.trainer.on_demand import Turn, Turns

DIAGNOSIS_SECONDS, DIAGNOSIS_SECONDS_ON_GPU = 30.0, 60.0
"""Seconds for a diagnosis after the start-up, ample for all parts. A GPU has two more and a profiler."""


def run(
    job: Job, progress: Progress, turn: Turn | None = None, on_start: Callable[[int], None] | None = None
) -> Measurement:
    """Runs one trial of a script.

    Args:
        turn: Turn that it waits for before each window, with its processes paused.
        on_start: Called with the id of the script's process.

    Raises:
        TrialFailedError: It cannot be measured, for a known reason.
        UserError: It cannot be started.
    """
    turn = turn or (Turns(Path(job.turns_folder)) if job.turns_folder else None)
    return begun_again(job, lambda: _run(job, progress, turn, on_start))


def _run(
    job: Job, progress: Progress, turn: Turn | None, on_start: Callable[[int], None] | None
) -> Measurement:
    with started(job, progress, rests=turn is not None) as script:
        if on_start is not None:
            on_start(script.process.pid)
        trial = RunningTrial(job, progress, script, turn)
        if job.recording is not None:
            trial.await_record()
        found = trial.measured()
        is_watched, evaluation_share = trial.is_watched, trial.evaluation_share
        earlier = trial.earlier
    # In the user's own folder, a diagnosis would leave a model that was trained on a single batch.
    is_wanted = job.plan.diagnose and is_watched and not script.sandbox.is_the_folder
    if is_wanted and (turn is None or turn.may_be_examined):
        progress.stage("diagnose")
        with started(job, progress, inject.DIAGNOSE, sum(each.steps for each in earlier)) as script:
            trial = RunningTrial(job, progress, script)
            most = DIAGNOSIS_SECONDS_ON_GPU if found.trains_on_gpu else DIAGNOSIS_SECONDS
            most += 2 * sum(each.seconds + each.paused_seconds for each in earlier)
            parts = trial.taken_apart(found.startup_seconds + most)
            diagnosis = parts.diagnosis(
                trial.folder, on_gpu=found.trains_on_gpu, is_guarded=script.sandbox.is_guarded
            )
            diagnosis = dataclasses.replace(diagnosis, evaluation_share=evaluation_share)
        breakdown = parts.breakdown()
        if breakdown is not None:
            found = dataclasses.replace(found, breakdown=breakdown)
        if breakdown is not None or diagnosis.outside:
            found = dataclasses.replace(found, diagnosis=diagnosis, finished_at=time.time())
    return found


def run_for_loss(job: Job, progress: Progress) -> Report:
    """Runs a script until it has trained on `quality_samples`, for its loss alone.

    Raises:
        TrialFailedError: It exited too early, or reports no loss.
    """
    return begun_again(job, lambda: _run_for_loss(job, progress))


def _run_for_loss(job: Job, progress: Progress) -> Report:
    with started(job, progress) as script:
        trial = RunningTrial(job, progress, script)
        trial.listen_for_loss()
        found = quality(job, trial.listener)
        if found is None:
            raise TrialFailedError(
                FailureKind.NO_RESULT,
                f"the script reported no loss after {job.plan.quality_samples:,} samples",
            )
        return Report(values=encode(found), finished_at=time.time())


def run_to_end(
    job: Job, progress: Progress, read: Callable[[str], None], on_start: Callable[[int], None]
) -> None:
    """Runs a script until it ends by itself.

    Args:
        read: Called with each line of its output.
        on_start: Called with the id of its process.

    Raises:
        TrialFailedError: It has failed.
        UserError: It cannot be started.
    """
    begun_again(job, lambda: _run_to_end(job, progress, read, on_start))


def _run_to_end(
    job: Job, progress: Progress, read: Callable[[str], None], on_start: Callable[[int], None]
) -> None:
    with started(job, progress) as script:
        on_start(script.process.pid)
        RunningTrial(job, progress, script).listen_to_end(read)


def run_for_record(job: Job, progress: Progress) -> Record:
    """Runs a script until the record of its first steps is complete, or it has ended; returns the record.

    A record that is not complete in time is compared as far as it goes.

    Raises:
        TrialFailedError: It has failed, or cannot be watched.
        UserError: It cannot be started.
    """
    return begun_again(job, lambda: _run_for_record(job, progress))


def _run_for_record(job: Job, progress: Progress) -> Record:
    with started(job, progress) as script:
        try:
            RunningTrial(job, progress, script).await_record()
        except TrialFailedError as error:
            if error.kind not in (FailureKind.TIMEOUT, FailureKind.STALLED):
                raise
            record = read_record(Path(job.folder))
            return Record(failure=str(error)) if record.failure else record
        # Before it is stopped: then, its processes write that they have ended.
        return read_record(Path(job.folder))
