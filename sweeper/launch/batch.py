"""Submits, replaces and cancels workers as jobs of a batch system, through dask-jobqueue."""

from __future__ import annotations

import contextlib
import subprocess
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sweeper.core.launchers import traits
from sweeper.errors import EnvironmentStopError, UserError
from sweeper.launch.cluster import RemoteLauncher, jobs_of, on_workers
from sweeper.launch.dask import CALL_SECONDS, CONNECT_SECONDS, JOB_NAME, DaskPool, import_dask_module
from sweeper.launch.job_options import jobqueue_options
from sweeper.launch.jobqueue import JobTable, cluster_class, job_class, new_keys
from sweeper.launch.launcher import LaunchRequest
from sweeper.schema.cluster import BatchJob
from sweeper.schema.sections import ExecutionOptions

ASK_SECONDS = 15.0
"""Seconds between two queries to the batch system while workers are missing, and after a rejection."""
MAX_REJECTIONS = 20
"""Consecutive rejections by the batch system after which a sweep without any job stops."""
MAX_ENDED_UNSTARTED = 3
"""Jobs in a row that may end before their worker starts; with that many, the sweep stops."""
MAX_WORDS = 60
"""Words of a job's output in a message."""
STALE_SECONDS = 20.0
"""Seconds after which a job that is not listed counts as ended; a younger one may not be listed yet."""

_SETTINGS = {
    # The trial of a lost worker is lost too; only the supervisor runs it again.
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.work-stealing": False,
    # A machine that loses power closes no connection.
    "distributed.scheduler.worker-ttl": "60s",
    # Time for a nanny to restart its worker before the job is given up.
    "distributed.deploy.lost-worker-timeout": "15s",
}


LOGS = "jobs"
"""Folder of the jobs' output, inside the sweep's folder."""


def launch(request: LaunchRequest) -> RemoteLauncher:
    """Returns the launcher of a batch system, after cancelling an earlier supervisor's jobs."""
    chosen, folder = request.execution, request.folder

    def pool() -> BatchPool:
        end_jobs(chosen.launcher, jobs_of(folder).get("jobs", []))
        job = chosen.job or BatchJob()
        return BatchPool(chosen.launcher, job, request.gpus, folder / LOGS, folder.name)

    return on_workers(request, pool)


def script_of(execution: ExecutionOptions, gpus: int, sweep: str) -> str:
    """Returns the script of one job of the sweep `sweep`, with `gpus` GPUs.

    Raises:
        UserError: dask-jobqueue is not installed.
    """
    return job_script(execution.launcher, execution.job or BatchJob(), gpus, sweep)


def job_script(launcher_name: str, job: BatchJob, gpus: int, sweep: str = "") -> str:
    """Returns the script of one job as it would be submitted, without asking the batch system."""
    keys = ["# Here: keys that authenticate worker and supervisor to each other."]
    arguments = _arguments(launcher_name, job, gpus, None, sweep, keys)
    dask_job = job_class(launcher_name)("tls://SCHEDULER", name="WORKER", protocol="tls://", **arguments)
    script: str = dask_job.job_script()
    return script


def end_jobs(launcher_name: str, jobs: Sequence[str]) -> None:
    """Cancels jobs that an earlier supervisor left behind."""
    if not jobs:
        return
    command = str(job_class(launcher_name).cancel_command).split()
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run([*command, *jobs], check=False, capture_output=True, timeout=60)


class BatchPool(DaskPool):
    """Workers that are jobs of a batch system, each with the GPUs of one trial."""

    stays = False

    def __init__(self, launcher_name: str, job: BatchJob, gpus: int, logs: Path, sweep: str = "") -> None:
        """Starts a scheduler in this process, but no job yet.

        Args:
            gpus: GPUs per job; 0 for none.
            logs: Folder for the jobs' output, which may not exist on the nodes.
            sweep: The sweep's name, which becomes part of the jobs' name.

        Raises:
            UserError: dask-jobqueue is not installed, or no scheduler can be started here.
        """
        dask, distributed = import_dask_module("dask"), import_dask_module("distributed")
        dask.config.set(_SETTINGS)
        # Anyone who can reach a scheduler can run code through it, so each has its own keys.
        security, exports = new_keys()
        arguments = _arguments(launcher_name, job, gpus, logs, sweep, exports)
        # Without an address, Dask would serve its dashboard to everybody.
        scheduler: dict[str, Any] = {"dashboard_address": "127.0.0.1:0"}
        if job.interface:
            scheduler["interface"] = job.interface
        self._launcher_name, self._system = launcher_name, traits(launcher_name).cluster
        self._started: dict[str, float] = {}
        self._asked_at, self._retry_at = time.monotonic(), 0.0
        self._num_rejections = self._num_ended_unstarted = 0
        self._logs = logs
        try:
            self._cluster = cluster_class(launcher_name)(
                scheduler_options=scheduler,
                security=security,
                protocol="tls://",
                silence_logs="critical",
                **arguments,
            )
        except (OSError, RuntimeError, ValueError) as error:
            raise UserError(
                f"cannot start the scheduler for {self._system} jobs here: {_first_message(error)}. See"
                " `execution.job.interface`."
            ) from error
        self._jobs = JobTable(self._cluster)
        self._use(distributed.Client(self._cluster, set_as_default=False, timeout=CONNECT_SECONDS))

    def want(self, count: int) -> None:
        """Submits or cancels jobs to reach `count`, and replaces lost ones.

        Raises:
            UserError: The batch system rejects the first job.
            EnvironmentStopError: It no longer accepts jobs, or several jobs in a row ended before their
                worker started.
        """
        now = time.monotonic()
        self._forget_ended()
        self._jobs.shrink(count)
        try:
            if not self._submit_missing(count, may_submit=now >= self._retry_at):
                return
            self._num_rejections = 0
        except (RuntimeError, TimeoutError, OSError) as error:
            self._note_rejection(error, now)
        for job in self._jobs.submitted.values():
            # Keyed by job ID, since a replacement has the same worker name.
            self._started.setdefault(job.job_id, now)

    def _submit_missing(self, count: int, *, may_submit: bool) -> bool:
        """Cancels surplus jobs, and submits those that are missing to reach `count`.

        Returns:
            Whether jobs were submitted.
        """
        jobs = self._jobs
        if jobs.has_surplus:
            # Cancels surplus jobs first, since a new job may reuse the name of one.
            jobs.complete()
        jobs.grow(count)
        if jobs.is_complete or not may_submit:
            return False
        jobs.complete()
        return True

    def _note_rejection(self, error: Exception, now: float) -> None:
        """Forgets rejected jobs; raises if one was the first job of all, or if none is accepted any more."""
        # Dask would keep rejected jobs as if they existed.
        for name in [name for name, job in self._jobs.submitted.items() if not job.job_id]:
            self._jobs.forget(name)
        self._retry_at, self._num_rejections = now + ASK_SECONDS, self._num_rejections + 1
        if not self._started:
            raise UserError(
                f"{self._system} rejects the jobs of `execution.job`: {_message_of(error)}. `sweeper run"
                " --dry-run` prints their script."
            ) from error
        if not self._jobs.submitted and self._num_rejections >= MAX_REJECTIONS:
            raise EnvironmentStopError(
                f"{self._system} no longer accepts jobs: {_message_of(error)}. Finished trials are kept;"
                " run the same command to continue."
            ) from error

    def workers(self) -> Sequence[str]:
        """Returns the addresses of the present workers."""
        addresses = super().workers()
        self._num_ended_unstarted = 0 if addresses else self._num_ended_unstarted
        return addresses

    def _forget_ended(self) -> None:
        """Forgets jobs that ended before their worker started; nothing else would notice them."""
        there = {str(info["name"]) for info in self._info.values()}
        waiting = {
            name: job for name, job in self._jobs.submitted.items() if str(name) not in there and job.job_id
        }
        now = time.monotonic()
        if not waiting or now - self._asked_at < ASK_SECONDS:
            return
        self._asked_at = now
        listed = _list_jobs(traits(self._launcher_name).list_jobs)
        if listed is None:
            return
        for name, job in waiting.items():
            if job.job_id not in listed and now - self._started.get(job.job_id, now) > STALE_SECONDS:
                self._jobs.forget(name)
                self._num_ended_unstarted += 1
        if self._num_ended_unstarted >= MAX_ENDED_UNSTARTED:
            raise EnvironmentStopError(
                f"{self._num_ended_unstarted} {self._system} jobs in a row ended before their worker started."
                f" One of them ended with: {self._last_words()}. Finished trials are kept; fix this and run"
                " the same command."
            )

    def _last_words(self) -> str:
        """Returns the end of the latest job's output, if this machine shares its folder."""
        logs = sorted(self._logs.glob("*"), key=lambda path: path.stat().st_mtime)
        texts = (path.read_text(encoding="utf-8", errors="replace").split() for path in reversed(logs))
        return " ".join(next(filter(None, texts), ["nothing", "in", str(self._logs)])[-MAX_WORDS:])

    def retire(self, worker: str) -> bool:
        """Stops an idle worker together with its job."""
        self._jobs.release(self._info.get(worker, {}).get("name", ""))
        return True

    def jobs(self) -> Sequence[str]:
        """Returns the jobs' IDs, including waiting ones."""
        return sorted(job.job_id for job in self._jobs.submitted.values() if job.job_id)

    def close(self) -> None:
        """Cancels every job and stops the scheduler."""
        # Jobs first: the process may be killed before it gets to the rest.
        end_jobs(self._launcher_name, self.jobs())
        super().close()
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._cluster.close(timeout=CALL_SECONDS)


def _list_jobs(command: str) -> set[str] | None:
    """Returns the IDs of the user's jobs in the batch system; None without a command, or an answer."""
    if not command:
        return None
    try:
        result = subprocess.run(command.split(), capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return set(result.stdout.split())


def _arguments(
    launcher_name: str, job: BatchJob, gpus: int, logs: Path | None, sweep: str, keys: Sequence[str]
) -> dict[str, Any]:
    named = f"{JOB_NAME}-{sweep}" if sweep else JOB_NAME
    arguments = jobqueue_options(launcher_name, job, gpus)
    return {
        **arguments,
        "job_script_prologue": [*keys, *arguments["job_script_prologue"]],
        "job_name": named[: traits(launcher_name).max_job_name],
        "log_directory": str(logs) if logs else None,
    }


def _message_of(error: Exception) -> str:
    """Returns the batch system's message; the rest of the error is about the call."""
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"`{error.filename}` was not found on this machine"
    _, _, message = str(error).rpartition("stderr:")
    lines = [
        line.removeprefix("sbatch: error: ").strip(" .") for line in message.splitlines() if line.strip()
    ]
    return "; ".join(lines) or str(error)


def _first_message(error: BaseException) -> str:
    """Returns the message of the first error in a chain."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).rstrip(".")
