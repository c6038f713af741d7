"""Retries: which endings of a job are tried again, and how often."""

from __future__ import annotations

from sweeper.core.job import Job
from sweeper.core.measurement import Failure, FailureKind, Outcome, Report

MAX_ATTEMPTS = 3
"""After these, a job that the environment ended, or that ran whenever the sweep was killed, failed."""
RETRIED = frozenset(
    {FailureKind.LOST, FailureKind.PREEMPTED, FailureKind.DEVICE_LOST, FailureKind.DEVICE_BUSY}
)
"""Endings by the environment; no other ending is tried again."""


def is_retried(job: Job, outcome: Outcome | Report | None) -> bool:
    """Returns whether the environment caused `outcome` and the job has attempts left."""
    return isinstance(outcome, Failure) and outcome.kind in RETRIED and job.attempt + 1 < MAX_ATTEMPTS
