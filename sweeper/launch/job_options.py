"""Translates `execution.job` into the options of SLURM, PBS, LSF and SGE."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sweeper.core.launchers import traits
from sweeper.launch.node import ENDS_AT
from sweeper.schema.cluster import BatchJob

LIFETIME_SECONDS = 20.0
"""Seconds before its job's time limit at which a worker exits by itself."""

_PROFILER_OFF = "export DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED=False"
"""Dask's profiler samples the worker every 10 ms, which disturbs timed trials."""


def jobqueue_options(launcher_name: str, job: BatchJob, gpus: int) -> dict[str, Any]:
    """Returns the options for dask-jobqueue.

    Args:
        launcher_name: A key of `_RESOURCE_OPTIONS`.
        gpus: GPUs per job; 0 for none.
    """
    minutes_only = traits(launcher_name).minutes_only
    seconds = job.time_seconds // 60 * 60 if minutes_only else job.time_seconds
    resource_options = _RESOURCE_OPTIONS[launcher_name](job, gpus)
    directives = [*resource_options.pop("job_extra_directives", ()), *job.directives]
    prologue = [
        f"export {ENDS_AT}=$(( $(date +%s) + {seconds:.0f} ))",
        _PROFILER_OFF,
        *job.prologue,
    ]
    return {
        **_option("queue", job.partition),
        **_option("interface", job.interface),
        **_option("python", job.python),
        **resource_options,
        # One Dask thread, for one trial at a time.
        "cores": 1,
        "processes": 1,
        "memory": job.memory,
        "walltime": _clock(seconds).removesuffix(":00" if minutes_only else ""),
        "job_extra_directives": directives,
        "job_script_prologue": prologue,
        "worker_extra_args": [
            *("--resources", "gpu=1"),
            *("--dashboard-address", "127.0.0.1:0"),
            *("--lifetime", f"{seconds - LIFETIME_SECONDS:.0f}s"),
        ],
    }


def _slurm(job: BatchJob, gpus: int) -> dict[str, Any]:
    directives = [
        *([f"--gres=gpu:{gpus}"] if gpus else []),
        *([f"--constraint={job.constraint}"] if job.constraint else []),
        *(["--exclusive"] if job.exclusive else []),
    ]
    return {"job_cpu": job.cores, "job_extra_directives": directives, **_option("account", job.account)}


def _pbs(job: BatchJob, gpus: int) -> dict[str, Any]:
    # PBS accepts only whole numbers, and no GiB.
    memory = math.ceil(job.memory_bytes / 2**20)
    parts = [f"select=1:ncpus={job.cores}:mem={memory}mb", *([f"ngpus={gpus}"] if gpus else [])]
    parts += [job.constraint] if job.constraint else []
    directives = ["-l place=excl"] if job.exclusive else []
    return {
        "resource_spec": ":".join(parts),
        "job_extra_directives": directives,
        **_option("account", job.account),
    }


def _lsf(job: BatchJob, gpus: int) -> dict[str, Any]:
    directives = [
        *([f'-gpu "num={gpus}:mode=shared:j_exclusive=yes"'] if gpus else []),
        *([f'-R "select[{job.constraint}]"'] if job.constraint else []),
        *(["-x"] if job.exclusive else []),
    ]
    return {"ncpus": job.cores, "job_extra_directives": directives, **_option("project", job.account)}


def _sge(job: BatchJob, gpus: int) -> dict[str, Any]:
    resources = [
        *([f"gpu={gpus}"] if gpus else []),
        *([job.constraint] if job.constraint else []),
        *(["exclusive=true"] if job.exclusive else []),
    ]
    return {
        "resource_spec": ",".join(resources) or None,
        # Many sites run a script with csh unless it names a shell here.
        "job_extra_directives": ["-S /bin/bash"],
        **_option("project", job.account),
    }


def _option(name: str, value: str) -> dict[str, str]:
    return {name: value} if value else {}


_RESOURCE_OPTIONS: Mapping[str, Callable[[BatchJob, int], dict[str, Any]]] = {
    "slurm": _slurm,
    "pbs": _pbs,
    "lsf": _lsf,
    "sge": _sge,
}
BATCH_LAUNCHERS: Sequence[str] = tuple(_RESOURCE_OPTIONS)


def _clock(seconds: float) -> str:
    """Returns `seconds` as `HH:MM:SS`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{rest:02d}"
