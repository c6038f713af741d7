"""Which jobs run again: those that the environment ended."""

from __future__ import annotations

import dataclasses

import pytest
from measurements import measurement

from sweeper.core.job import MAX_ATTEMPTS, Job, is_retried
from sweeper.core.measurement import Failure, FailureKind

JOB = Job(uid="x", timeout_seconds=100.0)


@pytest.mark.parametrize(("kind", "is_again"), [(FailureKind.LOST, True), (FailureKind.OOM, False)])
def test_only_what_the_environment_ended_runs_again(kind: FailureKind, is_again: bool):
    failure = Failure(kind=kind, message="")
    assert is_retried(JOB, failure) == is_again
    assert not is_retried(dataclasses.replace(JOB, attempt=MAX_ATTEMPTS - 1), failure)
    assert not is_retried(JOB, measurement())
