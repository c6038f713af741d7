"""What sweeper needs of dask-jobqueue: the classes of a batch system, keys without files, a table of jobs.

Read in dask-jobqueue 0.9.0, and in distributed 2025.1.0 and 2026.8.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sweeper.core.launchers import traits
from sweeper.launch.dask import import_dask_module

SUBMIT_SECONDS = 120.0


def cluster_class(launcher_name: str) -> Any:
    """Returns the class of a batch system's clusters.

    Raises:
        UserError: dask-jobqueue is not installed.
    """
    return getattr(import_dask_module("dask_jobqueue"), traits(launcher_name).jobqueue_class)


def job_class(launcher_name: str) -> Any:
    """Returns the class of a batch system's jobs."""
    return cluster_class(launcher_name).job_cls


def new_keys() -> tuple[Any, Sequence[str]]:
    """Returns new keys that authenticate the parts of a cluster to each other.

    Returns:
        A `distributed.Security` for the scheduler and its clients, and the shell lines that give a worker
        its keys, without any shared file.
    """
    base = import_dask_module("distributed").Security

    def config(self: Any, role: str) -> Any:
        # dask-jobqueue writes the keys of a worker that it gets here to files in the current folder.
        return {} if role == "worker" else base.get_tls_config_for_role(self, role)

    without_workers: Any = type("Security", (base,), {"get_tls_config_for_role": config})
    security = without_workers.temporary()
    keys = base.get_tls_config_for_role(security, "worker")
    names = {"ca_file": "CA_FILE", "cert": "WORKER__CERT", "key": "WORKER__KEY"}
    lines = [f"export DASK_DISTRIBUTED__COMM__TLS__{name}='{keys[key]}'" for key, name in names.items()]
    return security, lines


class JobTable:
    """The jobs of a cluster of dask-jobqueue: those that are asked for, and those that are submitted.

    Dask has no call that replaces a job, or forgets one that has ended. So this edits the two tables of
    `distributed.SpecCluster`: `worker_spec`, which it documents, and `workers`, which it documents for
    reading. Awaiting the cluster makes the second equal the first. If a release gave out copies of them,
    jobs that have ended would count as waiting, and idle workers would keep theirs.
    """

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster

    @property
    def submitted(self) -> Mapping[str, Any]:
        """The submitted jobs by name; a copy, since Dask's thread changes the table."""
        return dict(self._cluster.workers)

    @property
    def has_surplus(self) -> bool:
        """Whether jobs are submitted that are no longer asked for."""
        return bool(self._cluster.workers.keys() - self._cluster.worker_spec.keys())

    @property
    def is_complete(self) -> bool:
        """Whether the submitted jobs are those that are asked for."""
        return bool(self._cluster.workers.keys() == self._cluster.worker_spec.keys())

    def shrink(self, count: int) -> None:
        """Asks for at most `count` jobs; those without a worker go first."""
        if len(self._cluster.worker_spec) > count:
            self._cluster.scale(count)

    def grow(self, count: int) -> None:
        """Asks for at least `count` jobs."""
        while len(self._cluster.worker_spec) < count:
            self._cluster.worker_spec.update(self._cluster.new_worker_spec())

    def release(self, name: str) -> None:
        """No longer asks for a job."""
        self._cluster.worker_spec.pop(name, None)

    def forget(self, name: str) -> None:
        """Forgets a job that has ended or was rejected, so that `complete` submits another one."""
        job = self._cluster.workers.pop(name, None)
        if job is not None and not job.job_id:
            # Dask closes a cluster only if each job that it has created has begun to close, or has failed.
            job.status = import_dask_module("distributed").Status.failed

    def complete(self) -> None:
        """Cancels and submits jobs until `is_complete`.

        Raises:
            RuntimeError: The batch system rejects a job.
            TimeoutError: It has not answered.
            OSError: Its commands are not on this machine.
        """

        async def wait() -> None:
            await self._cluster

        self._cluster.sync(wait, callback_timeout=SUBMIT_SECONDS)
