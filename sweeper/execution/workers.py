"""The workers of a cluster as a launcher knows them, and the jobs they have."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sweeper.core.job import PREPARE_RUNNER, PROBE_RUNNER, Job
from sweeper.core.measurement import Outcome, Report
from sweeper.core.place import Place
from sweeper.execution.node import PREPARE_SECONDS
from sweeper.execution.pool import Worker

MARGIN_SECONDS = 30.0
"""Between the end of a trial that takes all its time and the end of the worker's job."""


class Ending(Protocol):
    """Who ends jobs."""

    def end(self, handle: RemoteHandle) -> None:
        """Ends a job, wherever it is."""


class RemoteHandle(Future[Outcome | Report]):
    """A job under way on some worker, or waiting for one.

    Attributes:
        place: Where it runs; None while it waits.
        is_ending: Whether its worker is told to end it.
    """

    def __init__(self, launcher: Ending, folder: Path, job: Job) -> None:
        super().__init__()
        self._launcher, self.folder, self.job = launcher, folder, job
        self.place: Place | None = None
        self.is_ending = False

    def cancel(self) -> bool:
        """Has the worker end the job's whole tree; the attempt is lost."""
        if self.done():
            return False
        self._launcher.end(self)
        return True


@dataclass(slots=True)
class Known:
    """A worker that is there.

    Attributes:
        ends_at: When its time is up, by the monotonic clock.
        handle: What runs on it, since `since`.
        refusal: Why it takes no trials; empty where it does.
        leaving: Whether it was told to go.
    """

    name: str
    about: Worker
    ends_at: float
    handle: RemoteHandle | None = None
    since: float = 0.0
    refusal: str = ""
    leaving: bool = False

    def has_time_for(self, seconds: float) -> bool:
        """Whether it is there for so long yet."""
        return time.monotonic() + seconds <= self.ends_at

    @property
    def is_overdue(self) -> bool:
        """Whether its job should have ended long ago: its keeper and the preparing of data have limits."""
        if self.handle is None:
            return False
        most = self.handle.job.timeout_seconds + PREPARE_SECONDS + MARGIN_SECONDS
        return time.monotonic() - self.since > most


def seconds_of(job: Job) -> float:
    """Returns how long a worker must be there yet for a job; setting up is no trial."""
    return 0.0 if job.runner in (PREPARE_RUNNER, PROBE_RUNNER) else job.timeout_seconds + MARGIN_SECONDS


def where(worker: Worker) -> str:
    """Returns a worker's machine and job in words."""
    return f"{worker.host} (job {worker.job})" if worker.job else worker.host
