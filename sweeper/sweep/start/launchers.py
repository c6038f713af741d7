"""Makes the launcher that `execution.launcher` names for a sweep's folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from sweeper.core.job import Job
from sweeper.core.launchers import LAUNCHERS, traits
from sweeper.core.registry import resolve
from sweeper.launch.cluster import JOBS, MODELS
from sweeper.launch.launcher import Launcher, LaunchRequest, make_launcher
from sweeper.launch.parcel import Parcel
from sweeper.schema import SweepSpec
from sweeper.schema.sections import ExecutionOptions
from sweeper.sweep.folder.journal import Journal, sweeps_folder
from sweeper.sweep.folder.lock import epoch_of
from sweeper.sweep.start.setup import devices_of_a_trial
from sweeper.sweep.workloads import workload_of
from sweeper.system.environment import added_variables, pass_env_names
from sweeper.system.files import read_json


def launcher_for(
    folder: Path,
    spec: SweepSpec,
    *,
    max_jobs: int | None = None,
    model: str = "",
    say: Callable[[str], None] = lambda line: None,
) -> Launcher:
    """Returns the launcher that `execution.launcher` names, for the sweep in `folder`.

    Args:
        max_jobs: Limit on concurrent jobs, in addition to that of `execution`.
        model: The only device model to use; by default the first worker's.
        say: Function that receives lines for the user.

    Raises:
        UserError: The launcher needs a package that is not installed here.
        EnvironmentStopError: The cluster cannot be reached.
    """
    return make_launcher(
        LaunchRequest(
            folder=folder,
            execution=_execution_of(spec),
            gpus=gpus_of_a_trial(spec),
            parcel=lambda: _template(folder, spec),
            max_jobs=max_jobs,
            model=model,
            say=say,
        )
    )


def _execution_of(spec: SweepSpec) -> ExecutionOptions:
    """Returns where the trials run, with what they see of the environment.

    On this machine, a script sees in a trial what it sees when it is watched.
    """
    # A glob passes no credentials.
    is_here = not traits(spec.execution.launcher).is_remote
    all_else = ("*",) if spec.traits.sees_environment and is_here else ()
    return spec.execution.model_copy(update={"pass_env": (*_pass_env(spec), *all_else)})


def _pass_env(spec: SweepSpec) -> tuple[str, ...]:
    return (*spec.execution.pass_env, *pass_env_names(os.environ))


def job_script_of(spec: SweepSpec) -> str:
    """Returns the job script for a batch system; empty if none is used.

    Raises:
        UserError: The package that writes the script is not installed.
    """
    row = LAUNCHERS.get(spec.execution.launcher)
    if not row.job_script:
        return ""
    script: str = resolve(row.job_script)(spec.execution, gpus_of_a_trial(spec), spec.name)
    return script


def gpus_of_a_trial(spec: SweepSpec) -> int:
    """Returns the GPUs that each job requests: the most that one trial may take."""
    return 0 if spec.execution.gpus == 0 else devices_of_a_trial(spec)


def other_models(folder: Path) -> list[str]:
    """Returns the device models of workers that the sweep in `folder` does not use."""
    with contextlib.suppress(OSError, ValueError):
        return [str(model) for model in read_json(folder / MODELS)]
    return []


def waiting_sweeps(home: Path) -> list[Path]:
    """Returns the folders of sweeps that have jobs but have not begun, for lack of a worker."""
    return [
        jobs.parent
        for jobs in sorted(sweeps_folder(home).glob(f"*/{JOBS}"))
        if not Journal(jobs.parent).has_begun
    ]


def _template(folder: Path, spec: SweepSpec) -> Parcel:
    """Returns a parcel with the fields that the parcels of all jobs have in common."""
    pass_env = _pass_env(spec)
    return Parcel(
        job=Job(uid=""),
        sweep=Journal(folder).identity,
        epoch=epoch_of(folder),
        isolation=spec.execution.isolation,
        env=added_variables(os.environ, pass_env),
        pass_env=pass_env,
        code=workload_of(spec).code(spec),
    )
