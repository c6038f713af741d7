"""Watches a command outside of a sweep: its speed, the parts of its steps, and the machine's telemetry."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from sweeper.core.config import TrialConfig
from sweeper.core.job import ANYWHERE, SCRIPT_RUNNER, Job, MeasurePlan
from sweeper.core.measurement import Measurement
from sweeper.core.progress import Progress, SilentProgress, TrialFailedError
from sweeper.core.recording import Recording
from sweeper.core.script import Script
from sweeper.core.template import literal
from sweeper.errors import UserError
from sweeper.race.record import Record
from sweeper.script.run import trial
from sweeper.script.run.guardian import guarded
from sweeper.script.run.scratch import scratch_folder
from sweeper.script.run.start import OURS
from sweeper.telemetry.nvml.devices import first_gpu
from sweeper.telemetry.probes import make_probes
from sweeper.telemetry.sampler import ProbeSampler, summarise
from sweeper.trainer.on_demand import WindowRequests

STALL_SECONDS = 60.0
"""A script is given up after this many seconds without a step, if that is also 20 times its usual step."""
NO_PARAMETERS = TrialConfig(args={})
PLAN = MeasurePlan(window_seconds=1.0, repeats=5, warmup_cap_seconds=15.0, cap_seconds=30.0)


@contextlib.contextmanager
def job_outside_a_sweep(
    script: Script, plan: MeasurePlan | None = None, cache: Path | None = None
) -> Iterator[Job]:
    """Yields the job that runs a script as it is, on all devices, in a temporary folder.

    The script's processes and the folder do not outlive this process, even if it is killed.

    Args:
        cache: Folder of compile caches and the like, which is not removed.
    """
    with scratch_folder() as folder, guarded(str(folder)) as variables:
        env = {**script.env, **{name: literal(text) for name, text in variables.items()}}
        yield _job(dataclasses.replace(script, env=env), str(folder), plan, str(cache or ""))


def _job(script: Script, folder: str, plan: MeasurePlan | None, cache: str) -> Job:
    return Job(
        uid="watch",
        folder=folder,
        runner=SCRIPT_RUNNER,
        script=script,
        env={name: os.environ[name] for name in OURS if name in os.environ},
        config=NO_PARAMETERS,
        plan=plan or MeasurePlan(),
        device=ANYWHERE,
        stall_seconds=STALL_SECONDS,
        cache=cache,
    )


def watch(
    command: Sequence[str],
    folder: Path,
    progress: Progress,
    *,
    env: Mapping[str, str] = MappingProxyType({}),
    plan: MeasurePlan = PLAN,
    cache: Path | None = None,
    turn: WindowRequests | None = None,
    on_start: Callable[[int], None] = lambda pid: None,
) -> Measurement:
    """Runs a command until it is measured and its steps are taken apart.

    Args:
        folder: Folder that it runs in, or that is mirrored for it.
        env: Its additional environment variables.
        plan: Timing of its windows, and whether its steps are taken apart.
        cache: Folder of compile caches and the like, which later runs share.
        turn: Turn that it waits for before each window.
        on_start: Called with the id of its process.

    Raises:
        TrialFailedError: It cannot be measured, for a known reason.
        UserError: It cannot be started.
    """
    script = _script(command, folder, env)
    sampler = ProbeSampler(make_probes())
    with job_outside_a_sweep(script, plan, cache) as job:
        gpu = first_gpu()

        def start(pid: int) -> None:
            if turn is not None:
                # Other scripts are measured from this process too: only this one is sampled.
                sampler.start(pid, gpu)
            on_start(pid)

        if turn is None:
            sampler.start(os.getpid(), gpu)
        try:
            measurement = trial.run(job, progress, turn, start)
        finally:
            sampler.stop()
    telemetry = summarise(sampler.columns(), measurement.windows)
    return dataclasses.replace(measurement, telemetry=telemetry, telemetry_missing=sampler.missing_reasons())


def record(
    command: Sequence[str],
    folder: Path,
    recording: Recording,
    *,
    env: Mapping[str, str] = MappingProxyType({}),
    cache: Path | None = None,
) -> Record:
    """Returns the record of a command's training, which may say why there is none.

    Args:
        folder: Folder that it runs in, or that is mirrored for it.
        env: Its additional environment variables.
        cache: Folder of compile caches and the like, which later runs share.
    """
    with job_outside_a_sweep(_script(command, folder, env), cache=cache) as job:
        job = dataclasses.replace(job, recording=recording)
        try:
            return trial.run_for_record(job, SilentProgress())
        except (TrialFailedError, UserError, OSError) as error:
            return Record(failure=str(error))


def run_to_end(
    command: Sequence[str],
    folder: Path,
    read: Callable[[str], None],
    on_start: Callable[[int], None],
    *,
    env: Mapping[str, str] = MappingProxyType({}),
    cache: Path | None = None,
) -> None:
    """Runs a command until it ends by itself, however long it is silent.

    Args:
        folder: Folder that it runs in, or that is mirrored for it.
        read: Called with each line of its output.
        on_start: Called with the id of its process.
        env: Its additional environment variables.
        cache: Folder of compile caches and the like, which later runs share.

    Raises:
        TrialFailedError: It has failed.
        UserError: It cannot be started.
    """
    with job_outside_a_sweep(_script(command, folder, env), cache=cache) as job:
        job = dataclasses.replace(job, stall_seconds=0.0, timeout_seconds=math.inf)
        trial.run_to_end(job, SilentProgress(), read, on_start)


def _script(command: Sequence[str], folder: Path, env: Mapping[str, str]) -> Script:
    return Script(
        command=tuple(map(literal, command)),
        env={name: literal(text) for name, text in env.items()},
        folder=str(folder),
    )
