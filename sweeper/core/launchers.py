"""Lists the launchers and their traits. Imports no launcher.

A new launcher is one file in `sweeper.launch` and one row of the table; what a new batch system needs is in
CONTRIBUTING.md; a third party's launcher is the import string of a row. No module outside `sweeper.launch`
branches on a launcher's name.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace

from sweeper.core.registry import Registry
from sweeper.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherTraits:
    """One launcher.

    Attributes:
        factory: Import string of a function `(LaunchRequest) -> Launcher` (`sweeper.launch.launcher`);
            empty for a launcher that is unknown here.
        is_remote: Jobs run on the workers of a cluster; the machine is unknown until the first
            worker describes it.
        is_batch: Each worker is a job of a batch system, described by `execution.job`, and
            `execution.gpus` or `execution.slots` says how many there are.
        keeps_processes: Jobs share the sweep's folder and run side by side, so that confirmation may keep
            a process and ask it for one window at a time.
        cluster: Display name of the cluster; empty where there is none.
        example_address: An example of `execution.address` for messages; empty if it takes no address.
        needs_address: `execution.address` is required.
        takes_tls: `execution.tls` is accepted, and required for a `tls://` address.
        jobqueue_class: Class of dask-jobqueue for the batch system; empty where there is none.
        job_script: Import string of a function `(ExecutionOptions, gpus, sweep) -> str` that returns the
            script of one job, given the GPUs per job and the name of the sweep; empty where there is none.
        list_jobs: Command that prints the IDs of the user's jobs, so that a job that ended before its
            worker started is noticed; empty where what it prints is not known here.
        max_job_name: Most characters of a job's name; older versions of PBS refuse more than 15.
        minutes_only: Time limits are `HH:MM`: LSF takes no seconds.
        requires: Module that must be installed; empty for none.
        install: The requirement that pip installs to get that module.
    """

    factory: str
    is_remote: bool = False
    is_batch: bool = False
    keeps_processes: bool = False
    cluster: str = ""
    example_address: str = ""
    needs_address: bool = False
    takes_tls: bool = False
    jobqueue_class: str = ""
    job_script: str = ""
    list_jobs: str = ""
    max_job_name: int | None = None
    minutes_only: bool = False
    requires: str = ""
    install: str = ""


LOCAL = "local"
"""The default launcher."""


def _batch(cluster: str, jobqueue_class: str) -> LauncherTraits:
    return LauncherTraits(
        factory="sweeper.launch.batch:launch",
        is_remote=True,
        is_batch=True,
        cluster=cluster,
        jobqueue_class=jobqueue_class,
        job_script="sweeper.launch.batch:script_of",
        requires="dask_jobqueue",
        install="sweeper-torch[dask]",
    )


BUILTIN = {
    LOCAL: LauncherTraits(factory="sweeper.launch.local:launch", keeps_processes=True),
    "inline": LauncherTraits(factory="sweeper.launch.inline:launch"),
    "slurm": replace(_batch("SLURM", "SLURMCluster"), list_jobs="squeue --noheader --format=%A --me"),
    "pbs": replace(_batch("PBS", "PBSCluster"), max_job_name=15),
    "lsf": replace(_batch("LSF", "LSFCluster"), minutes_only=True),
    "sge": _batch("SGE", "SGECluster"),
    "dask": LauncherTraits(
        factory="sweeper.launch.dask:launch",
        is_remote=True,
        cluster="Dask",
        example_address="tcp://HOST:8786",
        needs_address=True,
        takes_tls=True,
        requires="distributed",
        install="sweeper-torch[dask]",
    ),
    "ray": LauncherTraits(
        factory="sweeper.launch.ray:launch",
        is_remote=True,
        cluster="Ray",
        example_address="HOST:6379",
        requires="ray",
        install="sweeper-torch[ray]",
    ),
}
LAUNCHERS = Registry("`execution.launcher`", LauncherTraits, BUILTIN)
"""What `execution.launcher` can name."""


def traits(name: str) -> LauncherTraits:
    """Returns the traits of a launcher; neutral ones, without a factory, if it is unknown here."""
    return LAUNCHERS.look_up(name) or LauncherTraits(factory="")


def names_with(trait: str) -> list[str]:
    """Returns the built-in launchers whose `trait` is set, for messages."""
    return [name for name, row in BUILTIN.items() if getattr(row, trait)]


def find_installed(name: str) -> LauncherTraits:
    """Returns the traits of a launcher that is about to be used, without importing its library.

    Raises:
        UserError: There is no such launcher, or its library is not installed.
    """
    launcher = LAUNCHERS.get(name)
    if launcher.requires and importlib.util.find_spec(launcher.requires) is None:
        raise UserError(
            f"`execution.launcher: {name}` needs {launcher.requires}, which is not installed. "
            f"Install it with `pip install '{launcher.install or launcher.requires}'`."
        )
    return launcher
