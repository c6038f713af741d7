"""Describes the workers of a cluster, as a launcher knows them, and their jobs."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sweeper.core.job import PREPARE_RUNNER, PROBE_RUNNER, Job
from sweeper.core.measurement import Outcome, Report
from sweeper.core.place import TrialPlace
from sweeper.launch.node import PREPARE_SECONDS
from sweeper.launch.pool import WorkerDescription

MARGIN_SECONDS = 30.0
"""Seconds between a trial's time limit and the end of the worker's job."""


class JobCanceller(Protocol):
    """Cancels jobs."""

    def cancel_job(self, handle: RemoteHandle) -> None:
        """Cancels a job, whether it waits or runs."""


class RemoteHandle(Future[Outcome | Report]):
    """A job that runs on some worker or waits for one.

    Attributes:
        place: Where it runs; None while it waits.
        is_ending: Whether its worker has to cancel it.
    """

    def __init__(self, launcher: JobCanceller, folder: Path, job: Job) -> None:
        super().__init__()
        self._launcher, self.folder, self.job = launcher, folder, job
        self.place: TrialPlace | None = None
        self.is_ending = False

    def cancel(self) -> bool:
        """Makes the worker end the job's process tree; the attempt is lost."""
        if self.done():
            return False
        self._launcher.cancel_job(self)
        return True


@dataclass(slots=True)
class ConnectedWorker:
    """A present worker.

    Attributes:
        ends_at: Time of the monotonic clock at which the worker ends; infinite for no limit.
        handle: The job that it has run since `since`; None if it is idle.
        refusal: Why it takes no trials; empty if it takes them.
        leaving: Whether it was asked to leave.
    """

    name: str
    description: WorkerDescription
    ends_at: float
    handle: RemoteHandle | None = None
    since: float = 0.0
    refusal: str = ""
    leaving: bool = False

    def has_time_for(self, seconds: float) -> bool:
        """Returns whether it will be available for `seconds` more."""
        return time.monotonic() + seconds <= self.ends_at

    @property
    def is_overdue(self) -> bool:
        """Whether its job should have ended long ago, given its keeper's and `prepare`'s limits."""
        if self.handle is None:
            return False
        max_seconds = self.handle.job.timeout_seconds + PREPARE_SECONDS + MARGIN_SECONDS
        return time.monotonic() - self.since > max_seconds


def required_seconds(job: Job) -> float:
    """Returns the seconds for which a worker must be available for a job; 0 for setup jobs."""
    return 0.0 if job.runner in (PREPARE_RUNNER, PROBE_RUNNER) else job.timeout_seconds + MARGIN_SECONDS


def worker_place(worker: ConnectedWorker) -> str:
    """Returns a worker's machine and job in words."""
    host, job = worker.description.host, worker.description.job
    return f"{host} (job {job})" if job else host
