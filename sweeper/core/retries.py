"""Decides which jobs run again after which outcomes, and how often."""

from __future__ import annotations

from sweeper.core.job import Job
from sweeper.core.measurement import Failure, FailureKind, Outcome, Report

MAX_ATTEMPTS = 3
"""Maximum attempts at a job that the environment ends or that is running when the sweep is killed."""
RETRIED = frozenset(
    {FailureKind.LOST, FailureKind.PREEMPTED, FailureKind.DEVICE_LOST, FailureKind.DEVICE_BUSY}
)
"""Failures that the environment causes; no other failure is retried."""


def is_retried(job: Job, outcome: Outcome | Report | None) -> bool:
    """Returns whether the environment caused `outcome`, and the job has attempts left."""
    return isinstance(outcome, Failure) and outcome.kind in RETRIED and job.attempt + 1 < MAX_ATTEMPTS
