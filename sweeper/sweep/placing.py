"""What a sweep's jobs run on: the launcher that `execution.launcher` names, made for the sweep's folder."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sweeper.core.environment import passed
from sweeper.core.errors import UserError
from sweeper.core.files import read_json
from sweeper.core.job import Job
from sweeper.execution.inline import InlineLauncher
from sweeper.execution.launcher import Launcher
from sweeper.execution.local import LocalLauncher
from sweeper.execution.parcel import Parcel
from sweeper.execution.pool import Pool
from sweeper.execution.remote import JOBS, MODELS, RemoteLauncher
from sweeper.spec import SweepSpec
from sweeper.spec.cluster import BatchJob
from sweeper.spec.sections import BATCH
from sweeper.sweep.fingerprint import code_of
from sweeper.sweep.journal import Journal, sweeps_folder
from sweeper.sweep.lock import epoch_of
from sweeper.sweep.setup import MOST_WORKERS, devices_of_a_trial

LOGS = "jobs"


def launcher_for(
    folder: Path,
    spec: SweepSpec,
    *,
    most: int | None = None,
    model: str = "",
    say: Callable[[str], None] = lambda line: None,
) -> Launcher:
    """Returns what `execution.launcher` names, for the sweep in `folder`.

    Args:
        most: Jobs at once, where they are to be fewer than `execution` allows.
        model: The only model of device that counts; by default the first worker's.
        say: Takes lines for the person who watches.

    Raises:
        UserError: It needs what is not installed here.
        EnvironmentStopError: The cluster cannot be reached.
    """
    chosen = spec.execution
    if chosen.launcher == "inline":
        return InlineLauncher()
    if chosen.launcher == "local":
        return LocalLauncher(folder, isolation=chosen.isolation, pass_env=chosen.pass_env)
    wanted = chosen.at_once(gpus_of_a_trial(spec)) or MOST_WORKERS
    template = _template(folder, spec)
    return RemoteLauncher(
        _pool(folder, spec),
        template,
        most=min(wanted, most or wanted),
        needs_gpu=chosen.launcher in BATCH and chosen.gpus != 0,
        on_cpu=chosen.gpus == 0,
        model=model,
        same_gpu=chosen.same_gpu,
        folder=folder,
        say=say,
    )


def job_script_of(spec: SweepSpec) -> str:
    """Returns the script of one job of a batch system; empty where none is used.

    Raises:
        UserError: dask-jobqueue is not installed.
    """
    chosen = spec.execution
    if chosen.launcher not in BATCH:
        return ""
    from sweeper.execution.jobqueue import job_script

    return job_script(chosen.launcher, chosen.job or BatchJob(), gpus_of_a_trial(spec), spec.name)


def check_launcher(spec: SweepSpec) -> None:
    """Raises UserError where the launcher's library is not installed; nothing of it is imported."""
    launcher = spec.execution.launcher
    needed = {"dask": "distributed", "ray": "ray"}.get(launcher, "dask_jobqueue" if launcher in BATCH else "")
    if needed and importlib.util.find_spec(needed) is None:
        extra = "ray" if launcher == "ray" else "dask"
        raise UserError(
            f"`execution.launcher: {launcher}` needs {needed}, which is not installed. "
            f"`pip install 'sweeper[{extra}]'` installs it."
        )


def gpus_of_a_trial(spec: SweepSpec) -> int:
    """Returns the GPUs that each job asks for: the most that one trial may take."""
    return 0 if spec.execution.gpus == 0 else devices_of_a_trial(spec)


def other_models(folder: Path) -> list[str]:
    """Returns the models of device that workers had, and the sweep in `folder` is not on."""
    with contextlib.suppress(OSError, ValueError):
        return [str(model) for model in read_json(folder / MODELS)]
    return []


def jobs_of(folder: Path) -> Mapping[str, Any]:
    """Returns the jobs and workers of the sweep in `folder`, as last written; empty where it has none."""
    with contextlib.suppress(OSError, ValueError):
        found = read_json(folder / JOBS)
        if isinstance(found, dict):
            return found
    return {}


def waiting_sweeps(home: Path) -> list[Path]:
    """Returns the folders of sweeps that have jobs, and no worker yet to begin on."""
    return [
        each.parent
        for each in sorted(sweeps_folder(home).glob(f"*/{JOBS}"))
        if not Journal(each.parent).begun
    ]


def _pool(folder: Path, spec: SweepSpec) -> Pool:
    """Starts, or joins, the workers. What is not chosen is not imported."""
    chosen = spec.execution
    if chosen.launcher == "ray":
        from sweeper.execution.ray import RayPool

        gpus = gpus_of_a_trial(spec)
        return RayPool(chosen.address, gpus, chosen.at_once(gpus))
    if chosen.launcher == "dask":
        from sweeper.execution.dask import DaskPool

        return DaskPool(chosen.address, chosen.tls)
    from sweeper.execution.jobqueue import BatchPool, end_jobs

    end_jobs(chosen.launcher, jobs_of(folder).get("jobs", []))
    return BatchPool(
        chosen.launcher, chosen.job or BatchJob(), gpus_of_a_trial(spec), folder / LOGS, folder.name
    )


def _template(folder: Path, spec: SweepSpec) -> Parcel:
    """Returns what the parcels of all jobs have in common."""
    pass_env = spec.execution.pass_env
    usual = passed(os.environ)
    return Parcel(
        job=Job(uid=""),
        sweep=Journal(folder).identity,
        turn=epoch_of(folder),
        isolation=spec.execution.isolation,
        env={name: value for name, value in passed(os.environ, pass_env).items() if name not in usual},
        pass_env=tuple(pass_env),
        code=code_of(spec.pipeline) if spec.pipeline else {},
    )
