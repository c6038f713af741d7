"""Decides which jobs run again after which outcomes, and how often."""

from __future__ import annotations

from sweeper.core.job import Job
from sweeper.core.measurement import Failure, FailureKind, Measurement, Outcome, Report

MAX_ATTEMPTS = 3
"""Maximum attempts at a job that the environment ends or that is running when the sweep is killed."""
RETRIED = frozenset(
    {FailureKind.LOST, FailureKind.PREEMPTED, FailureKind.DEVICE_LOST, FailureKind.DEVICE_BUSY}
)
"""Failures that the environment causes; no other failure is retried. A disturbed measurement may be, once."""


AGAIN_SHARE = 0.15
"""Largest share of the time that is left which a trial may take to run again because it was disturbed."""


def is_retried(job: Job, outcome: Outcome | Report | None) -> bool:
    """Returns whether the environment caused or disturbed `outcome`, and the job has attempts left."""
    if isinstance(outcome, Measurement):
        is_affordable = outcome.seconds <= AGAIN_SHARE * job.timeout_seconds
        wanted = job.plan.again_if_disturbed and bool(outcome.contamination)
        return wanted and is_affordable and not job.attempt
    return isinstance(outcome, Failure) and outcome.kind in RETRIED and job.attempt + 1 < MAX_ATTEMPTS
