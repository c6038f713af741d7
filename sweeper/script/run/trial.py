"""The ways to run a script: for its speed, for its loss, for the record of its first steps, to its end."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from sweeper.core.codec import encode
from sweeper.core.job import Job
from sweeper.core.measurement import FailureKind, Measurement, Report
from sweeper.core.progress import Progress, TrialFailedError
from sweeper.core.workload import script_of
from sweeper.race.record import Record
from sweeper.script.run.result import quality
from sweeper.script.run.running import RunningTrial
from sweeper.script.run.start import RunningScript, begins_again, started
from sweeper.script.run.taken_apart import StepAnalysis, usual_seconds
from sweeper.script.run.timeline import Stretch
from sweeper.script.run.warm import read_record
from sweeper.trainer.on_demand import RequestFiles, WindowRequests

MORE_SECONDS, MORE_SECONDS_OF_A_RACE = 30.0, 5.0
"""Seconds in addition to what it usually takes to take steps apart; a race keeps no time for more."""


@begins_again
def run(
    job: Job,
    progress: Progress,
    turn: WindowRequests | None = None,
    on_start: Callable[[int], None] | None = None,
) -> Measurement:
    """Runs one trial of a script.

    Args:
        turn: Turn that it waits for before each window, with its processes paused.
        on_start: Called with the id of the script's process.

    Raises:
        TrialFailedError: It cannot be measured, for a known reason.
        UserError: It cannot be started.
    """
    turn = turn or (RequestFiles(Path(job.turns_folder)) if job.turns_folder else None)
    is_kept = script_of(job).keep
    # All that take turns pay for these reports, so that no arm of a race is favoured.
    with started(job, progress, reports_outside=job.plan.diagnose or turn is not None) as script:
        if on_start is not None:
            on_start(script.process.pid)
        trial = RunningTrial(job, progress, script, turn)
        if job.recording is not None:
            trial.await_record()
        measured = trial.measure()
        evaluation_share = trial.listener.timeline.paused_share
        examines = job.plan.diagnose and _may_be_taken_apart(trial, script, turn)
        seconds = MORE_SECONDS if turn is None else MORE_SECONDS_OF_A_RACE
        seconds += usual_seconds(measured.step_ms / 1e3, on_gpu=measured.trains_on_gpu)
        if examines and not is_kept:
            progress.stage("diagnose")
            trial.take_apart(seconds)
        parts, is_over = trial.parts, is_kept or trial.has_ended
    if examines and turn is None and not parts.is_done and is_over:
        # What it leaves is kept, or its training was too short. A race has no time for another start.
        progress.stage("diagnose")
        again = _take_apart_anew(job, progress, measured.startup_seconds + seconds, trial.earlier)
        parts = parts if again.breakdown() is None else again
    measured = _with_parts(job, measured, parts, script, evaluation_share)
    return dataclasses.replace(measured, finished_at=time.time())


def _may_be_taken_apart(trial: RunningTrial, script: RunningScript, turn: WindowRequests | None) -> bool:
    """Returns whether the steps of a running trial can be taken apart without harm."""
    # In the user's own folder, this would leave a model that was trained on a single batch.
    if not trial.is_watched or script.sandbox.is_the_folder:
        return False
    return turn is None or turn.may_be_examined


def _with_parts(
    job: Job, measured: Measurement, parts: StepAnalysis, script: RunningScript, evaluation_share: float
) -> Measurement:
    """Returns a measurement with the parts of a step and their diagnosis, as far as they are known."""
    diagnosis = parts.diagnosis(
        script.sandbox.folder, on_gpu=measured.trains_on_gpu, is_guarded=script.sandbox.is_guarded
    )
    breakdown = parts.breakdown()
    if breakdown is not None:
        measured = dataclasses.replace(measured, breakdown=breakdown)
    if job.plan.diagnose and (breakdown is not None or diagnosis.outside):
        diagnosis = dataclasses.replace(diagnosis, evaluation_share=evaluation_share)
        measured = dataclasses.replace(measured, diagnosis=diagnosis)
    return measured


def _take_apart_anew(
    job: Job, progress: Progress, seconds: float, earlier: Sequence[Stretch]
) -> StepAnalysis:
    """Runs a script once more, to take its steps apart.

    Args:
        seconds: Longest time that this may take, beside its earlier stages.
        earlier: The earlier stages of its training.
    """
    seconds += 2 * sum(stretch.seconds + stretch.paused_seconds for stretch in earlier)
    with started(job, progress, is_trial=False, reports_outside=True) as script:
        trial = RunningTrial(job, progress, script)
        trial.take_apart(seconds, sum(stretch.steps for stretch in earlier))
        return trial.parts


@begins_again
def run_for_loss(job: Job, progress: Progress) -> Report:
    """Runs a script until it has trained on `quality_samples`, for its loss alone.

    Raises:
        TrialFailedError: It exited too early, or reports no loss.
    """
    with started(job, progress) as script:
        trial = RunningTrial(job, progress, script)
        trial.listen_for_loss()
        trial_quality = quality(job, trial.listener)
        if trial_quality is None:
            raise TrialFailedError(
                FailureKind.NO_RESULT,
                f"the script reported no loss after {job.plan.quality_samples:,} samples",
            )
        return Report(values=encode(trial_quality), finished_at=time.time())


@begins_again
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
    with started(job, progress) as script:
        on_start(script.process.pid)
        RunningTrial(job, progress, script).listen_to_end(read)


@begins_again
def run_for_record(job: Job, progress: Progress) -> Record:
    """Runs a script until the record of its first steps is complete, or it has ended; returns the record.

    A record that is not complete in time is compared as far as it goes.

    Raises:
        TrialFailedError: It has failed, or cannot be watched.
        UserError: It cannot be started.
    """
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
