"""The folder contract between supervisor and worker: config.json in, outcome.json out."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeper.core.codec import decode, encode
from sweeper.core.config import TrialConfig
from sweeper.core.measurement import RETRIES, Failure, Measurement, Outcome, Report
from sweeper.core.script import Script
from sweeper.core.training import Training
from sweeper.errors import EnvironmentStopError
from sweeper.system.files import make_folder, ours, read_json, write_json
from sweeper.system.secrets import struck_tree

SCHEMA = 1
CONFIG = "config.json"
OUTCOME = "outcome.json"
LOG = "worker.log"
SERIES = "series"
TELEMETRY_LOG = "telemetry.log"
TRACE = "trace.json.gz"
RECORD = "script.json"
"""Of a script: what exactly ran, and what was heard of it."""

ANYWHERE = "auto"
"""As a job's device: the worker's own, wherever that is."""

RUNS_AGAIN = "Restore it, or remove it: what it told of then runs again"

# What runs a job. `worker/runners.py` knows where each is.
TRIAL_RUNNER = "trial"
QUALITY_RUNNER = "quality"
PREPARE_RUNNER = "prepare"
PROBE_RUNNER = "probe"
TRACE_RUNNER = "trace"
GPU_CHECK_RUNNER = "gpu_check"
TRYING_RUNNER = "dry_step"
PREFLIGHT_RUNNER = "preflight"
CEILINGS_RUNNER = "ceilings"
SCRIPT_RUNNER = "script"
SCRIPT_QUALITY_RUNNER = "script_quality"
TRAINING_RUNNER = "training"

_RUNNERS_OF_0_1 = {
    "sweeper.trainer.measure:run": TRIAL_RUNNER,
    "sweeper.trainer.quality:run": QUALITY_RUNNER,
    "sweeper.trainer.prepare:run": PREPARE_RUNNER,
    "sweeper.trainer.probe:run": PROBE_RUNNER,
    "sweeper.trainer.tracing:run": TRACE_RUNNER,
    "sweeper.trainer.gpu_check:run": GPU_CHECK_RUNNER,
    "sweeper.trainer.trying:run": TRYING_RUNNER,
    "sweeper.trainer.preflight:run": PREFLIGHT_RUNNER,
    "sweeper.trainer.ceilings:run": CEILINGS_RUNNER,
    "sweeper.script.trial:run": SCRIPT_RUNNER,
    "sweeper.script.trial:run_for_loss": SCRIPT_QUALITY_RUNNER,
    "sweeper.trainer.production:run": TRAINING_RUNNER,
}
"""Version 0.1.0 wrote import strings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurePlan:
    """How a trial is timed.

    Attributes:
        window_seconds: Length of one timed window.
        repeats: Number of windows.
        warmup_cap_seconds: Longest warm-up, compile excluded.
        cap_seconds: Once this much time has been spent measuring, no further window is begun.
        quality_samples: Training samples of the quality pass; 0 leaves it out.
        quality_above: Throughput below which the trial could not win, so that no pass is run.
        quality_cap_seconds: No pass is run that would take longer, by the steps measured.
        quiet_canary_ms: The canary's time when nothing else runs on the machine; 0 where unknown.
        diagnose: Whether the parts of a step are run on their own after the windows.
        screen_seconds: Length of a window before the others, after which a trial that is too slow ends.
        screen_above: Throughput that it must reach there; 0 leaves the screening out.
    """

    window_seconds: float = 3.0
    repeats: int = 3
    warmup_cap_seconds: float = 20.0
    cap_seconds: float = 120.0
    quality_samples: int = 0
    quality_above: float = 0.0
    quality_cap_seconds: float = 600.0
    quiet_canary_ms: float = 0.0
    diagnose: bool = True
    screen_seconds: float = 0.0
    screen_above: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a worker is asked to do.

    Attributes:
        folder: Where its config.json is, wherever that was moved to.
        runner: What runs it: one of the names above, or `module:function`, which takes `(Job, Progress)` and
            returns the result.
        pipeline: Module of the user's pipeline, found through `import_paths`.
        script: What is run in place of a pipeline; None where there is one.
        data: The `data:` section of the specification.
        prepared: Folder of the prepared data (made once by the prepare job).
        cache: Folder for compile caches and the like.
        trace: File that a tracing job writes.
        training: What a production run is asked for; None for all other jobs.
        turns: Folder through which the windows are asked for one by one (`sweeper.trainer.on_demand`);
            empty where they follow each other.
        device: `cpu`, or CUDA devices as CUDA_VISIBLE_DEVICES takes them (UUIDs or indices); the trial
            takes the first `device.count` of them. `auto` is whatever the worker has.
        cpus: Cores to stay on; empty means all that are usable.
        env: Environment variables of the trial, set before anything is imported.
        timeout_seconds: For the whole job.
        stage_seconds: For single stages (`sweeper.core.progress.STAGES`); those that are not named have
            no limit of their own.
        stall_seconds: How long no step may come where steps are taken; 0 for no such limit.
        attempt: 0 at first; counts the times the environment ended this trial.
        params: The search's own values for the trial, before `when` and aliases are applied.
        origin: Where its configuration came from, in words.
    """

    uid: str
    folder: str = field(default="", compare=False)
    runner: str = TRIAL_RUNNER
    pipeline: str = ""
    import_paths: tuple[str, ...] = ()
    script: Script | None = None
    config: TrialConfig = field(default_factory=TrialConfig)
    data: Mapping[str, Any] = field(default_factory=dict)
    plan: MeasurePlan = field(default_factory=MeasurePlan)
    prepared: str = ""
    cache: str = ""
    trace: str = ""
    training: Training | None = None
    turns: str = ""
    device: str = "cpu"
    cpus: tuple[int, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_seconds: float = 600.0
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    stall_seconds: float = 0.0
    attempt: int = 0
    stage: str = "search"
    params: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""
    asked_at: float = 0.0


def write_job(folder: Path, job: Job) -> None:
    """Writes `folder/config.json`, making the folder."""
    make_folder(folder)
    if folder.is_symlink():
        raise EnvironmentStopError(f"{folder} must be a folder, but it is a link. Remove the link.")
    write_json(folder / CONFIG, {"schema": SCHEMA, **encode(job)})


def read_job(folder: Path) -> Job:
    """Returns the job in `folder`.

    Raises:
        FileNotFoundError: There is none.
        EnvironmentStopError: Its file was spoilt.
    """
    path = folder / CONFIG
    with ours(path, f"Restore it, or remove {folder}"):
        job = decode(Job, {**read_json(path), "folder": str(folder)})
    if job.runner in _RUNNERS_OF_0_1:
        job = dataclasses.replace(job, runner=_RUNNERS_OF_0_1[job.runner])
    return job


_OUTCOMES: Mapping[str, type] = {"measurement": Measurement, "failure": Failure, "report": Report}


def write_outcome(folder: Path, outcome: Outcome | Report, secrets: Collection[str] = ()) -> None:
    """Writes `folder/outcome.json` atomically: the commit point of a trial.

    Args:
        secrets: Values which no text of it may hold: what an exception says is the user's.
    """
    name = type(outcome).__name__.lower()
    write_json(folder / OUTCOME, {"schema": SCHEMA, "type": name, **struck_tree(encode(outcome), secrets)})


def decode_outcome(value: Any) -> Outcome | Report:
    """Returns the outcome in an encoded object with its `type`."""
    return decode(_OUTCOMES[value["type"]], value)


def read_outcome(folder: Path) -> Outcome | Report | None:
    """Returns the outcome in `folder`, or None while there is none.

    Raises:
        EnvironmentStopError: Its file was spoilt.
    """
    path = folder / OUTCOME
    try:
        with ours(path, RUNS_AGAIN):
            outcome = decode_outcome(read_json(path))
    except FileNotFoundError:
        return None
    return outcome


def is_tried_again(job: Job, outcome: Outcome | Report | None) -> bool:
    """Returns whether `outcome` is the environment's doing, and the job has attempts left."""
    return isinstance(outcome, Failure) and job.attempt < RETRIES.get(outcome.kind, 0)


def seconds_of(job: Job, outcome: Outcome | Report) -> float:
    """Returns how long a job took.

    By the monotonic clock where one attempt was all and that was kept; else by the wall's stamps, within
    what the job was allowed: a clock that was set meanwhile neither takes the sweep's time nor gives any.
    """
    known: float = getattr(outcome, "seconds", 0.0)
    if known and not job.attempt:
        return known
    most = (1 + job.attempt) * job.timeout_seconds
    return max(known, min(outcome.finished_at - job.asked_at, most))
