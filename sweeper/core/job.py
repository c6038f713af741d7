"""Defines the folder contract between supervisor and worker: config.json in, outcome.json out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeper.core import schema_1
from sweeper.core.codec import decode, encode
from sweeper.core.config import TrialConfig
from sweeper.core.measurement import Failure, FailureKind, Measurement, Outcome, Report
from sweeper.core.recording import Recording
from sweeper.core.script import Script
from sweeper.core.training import Training
from sweeper.errors import EnvironmentStopError
from sweeper.system.files import make_folder, read_json, reading, write_json
from sweeper.system.secrets import strike_tree

SCHEMA = 2
"""Version of what is stored of a sweep."""
CONFIG = "config.json"
OUTCOME = "outcome.json"
LOG = "worker.log"
SERIES = "series"
TELEMETRY_LOG = "telemetry.log"
TRACE = "trace.json.gz"
RECORD = "script.json"
"""File that records what exactly ran for a script, and what the script reported."""

ANYWHERE = "auto"
"""A job's device that stands for whichever the worker has."""

SEARCH_STAGE = "search"
"""The stage of a job that is a trial of the search."""
RACE_STAGE = "race"
"""The stage of a job that is a process in a race."""

RESTORE_HINT = "Restore it, or remove it to run that job again"

# The runners of jobs; `worker/trial.py` locates each.
TRIAL_RUNNER = "trial"
QUALITY_RUNNER = "quality"
PREPARE_RUNNER = "prepare"
PROBE_RUNNER = "probe"
TRACE_RUNNER = "trace"
GPU_CHECK_RUNNER = "gpu_check"
DRY_STEP_RUNNER = "dry_step"
PREFLIGHT_RUNNER = "preflight"
CEILINGS_RUNNER = "ceilings"
SCRIPT_RUNNER = "script"
SCRIPT_QUALITY_RUNNER = "script_quality"
TRAINING_RUNNER = "training"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurePlan:
    """The plan by which a trial is timed.

    Attributes:
        window_seconds: Length of one timed window.
        repeats: Number of windows.
        warmup_cap_seconds: Longest warm-up, compile excluded.
        cap_seconds: Measuring time after which no further window begins.
        quality_samples: Training samples of the quality pass; 0 skips it.
        quality_parts: Number of parts of the pass; the loss is measured after each.
        evaluate: Whether the pass ends with the pipeline's own metrics.
        until_loss: Loss at which the pass may end after a part; None to train on all its samples.
        quality_above: Throughput below which the trial cannot win and the pass is skipped.
        quality_cap_seconds: Longest expected duration at which the pass still runs, judging by the
            measured steps.
        quiet_canary_ms: The canary's time when nothing else runs on the machine; 0 where unknown.
        diagnose: Whether the parts of a step are measured separately after the windows.
        screen_seconds: Length of a first window, after which a trial that is too slow ends.
        screen_above: Throughput that a trial must reach in that window; 0 turns screening off.
    """

    window_seconds: float = 3.0
    repeats: int = 3
    warmup_cap_seconds: float = 20.0
    cap_seconds: float = 120.0
    quality_samples: int = 0
    quality_parts: int = 4
    evaluate: bool = True
    until_loss: float | None = None
    quality_above: float = 0.0
    quality_cap_seconds: float = 600.0
    quiet_canary_ms: float = 0.0
    diagnose: bool = True
    screen_seconds: float = 0.0
    screen_above: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A task for a worker.

    Attributes:
        folder: The folder that its config.json is in now, even if it was moved.
        runner: The function that runs it: one of the names above, or `module:function`. It takes
            `(Job, Progress)` and returns the result.
        pipeline: Module of the user's pipeline, found through `import_paths`.
        script: The script to run instead of a pipeline; None for a pipeline.
        data: The `data:` section of the specification.
        prepared: Folder of the prepared data (made once by the prepare job).
        probes: Import strings of the probes that sample it besides the built-in ones.
        cold_cache: Whether its data is dropped from the kernel's page cache when it begins.
        cache: Folder for compile caches and the like.
        trace: File that a tracing job writes.
        training: Options of a production run; None for all other jobs.
        turns_folder: Folder through which windows are requested one by one (`sweeper.trainer.on_demand`);
            empty where they follow one another.
        recording: How a script's first steps are recorded, before they are timed; None if they are not.
        device: `cpu`, or CUDA devices as CUDA_VISIBLE_DEVICES takes them (UUIDs or indices); the trial
            takes the first `device.count` of them. `auto` is whatever the worker has.
        cpus: Cores to run on; empty for all usable ones.
        env: Environment variables of the trial, set before anything is imported.
        timeout_seconds: Limit for the whole job.
        stage_seconds: Limits for single stages (`sweeper.core.progress.STAGES`); the others have
            none.
        stall_seconds: Longest time without a step in stages that take steps; 0 for no limit.
        patience_seconds: Time after which a script is given up if its output is not understood and
            torch reports nothing; 0 for no limit.
        reporter: The required reporter of a script's speed, as named in the baseline's measurement; empty
            for any reporter.
        attempt: Number of times that the environment has ended this trial; 0 at first.
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
    probes: tuple[str, ...] = ()
    cold_cache: bool = False
    cache: str = ""
    trace: str = ""
    training: Training | None = None
    turns_folder: str = ""
    recording: Recording | None = None
    device: str = "cpu"
    cpus: tuple[int, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_seconds: float = 600.0
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    stall_seconds: float = 0.0
    patience_seconds: float = 0.0
    reporter: str = ""
    attempt: int = 0
    stage: str = SEARCH_STAGE
    params: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""
    created_at: float = 0.0


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
        EnvironmentStopError: Its file is damaged.
    """
    path = folder / CONFIG
    with reading(path, f"Restore it, or remove {folder}"):
        job = decode(Job, {**schema_1.job(read_json(path)), "folder": str(folder)})
    return job


_OUTCOMES: Mapping[str, type] = {"measurement": Measurement, "failure": Failure, "report": Report}


def write_outcome(folder: Path, outcome: Outcome | Report, secrets: Collection[str] = ()) -> None:
    """Writes `folder/outcome.json` atomically: the commit point of a trial.

    Args:
        secrets: Values to strike from its texts, since an exception's message may hold anything.
    """
    name = type(outcome).__name__.lower()
    write_json(folder / OUTCOME, {"schema": SCHEMA, "type": name, **strike_tree(encode(outcome), secrets)})


def decode_outcome(value: Any) -> Outcome | Report:
    """Returns the outcome encoded in `value`, whose key `type` names its kind."""
    return decode(_OUTCOMES[value["type"]], value)


def read_outcome(folder: Path) -> Outcome | Report | None:
    """Returns the outcome in `folder`, or None while there is none.

    Raises:
        EnvironmentStopError: Its file is damaged.
    """
    path = folder / OUTCOME
    try:
        with reading(path, RESTORE_HINT):
            outcome = decode_outcome(schema_1.outcome(read_json(path)))
    except FileNotFoundError:
        return None
    return outcome


def seconds_of(job: Job, outcome: Outcome | Report) -> float:
    """Returns how long a job took.

    A single attempt is timed by the monotonic clock where that was stored. Otherwise wall-clock
    stamps are used, bounded by the job's limit, so that setting the clock neither costs nor adds
    sweep time.
    """
    seconds: float = getattr(outcome, "seconds", 0.0)
    if seconds and not job.attempt:
        return seconds
    max_seconds = (1 + job.attempt) * job.timeout_seconds
    return max(seconds, min(outcome.finished_at - job.created_at, max_seconds))


MAX_ATTEMPTS = 3
"""Maximum attempts at a job that the environment ends or that is running when the sweep is killed."""
RETRIED = frozenset(
    {FailureKind.LOST, FailureKind.PREEMPTED, FailureKind.DEVICE_LOST, FailureKind.DEVICE_BUSY}
)
"""Failures that the environment causes; no other failure is retried."""


def is_retried(job: Job, outcome: Outcome | Report | None) -> bool:
    """Returns whether the environment caused `outcome`, and the job has attempts left."""
    return isinstance(outcome, Failure) and outcome.kind in RETRIED and job.attempt + 1 < MAX_ATTEMPTS
