"""Which jobs run again: those that the environment ended, and a tune's trials that it disturbed."""

from __future__ import annotations

import dataclasses

import pytest
from measurements import measurement

from sweeper.core.job import Job, MeasurePlan
from sweeper.core.measurement import Failure, FailureKind, Measurement
from sweeper.core.retries import AGAIN_SHARE, MAX_ATTEMPTS, is_retried

TUNE = Job(uid="x", plan=MeasurePlan(again_if_disturbed=True), timeout_seconds=100.0)


def disturbed(seconds: float = 5.0) -> Measurement:
    found = measurement()
    windows = tuple(
        dataclasses.replace(window, disturbances=("other processes",)) for window in found.windows
    )
    return dataclasses.replace(found, windows=windows, seconds=seconds)


def test_a_disturbed_trial_of_a_tune_runs_once_more():
    assert is_retried(TUNE, disturbed())
    assert not is_retried(dataclasses.replace(TUNE, attempt=1), disturbed())
    assert not is_retried(TUNE, measurement())
    assert not is_retried(dataclasses.replace(TUNE, plan=MeasurePlan()), disturbed())


def test_a_disturbed_trial_does_not_take_much_of_the_time_that_is_left():
    assert is_retried(TUNE, disturbed(100.0 * AGAIN_SHARE))
    assert not is_retried(TUNE, disturbed(100.0 * AGAIN_SHARE + 0.1))


@pytest.mark.parametrize(("kind", "is_again"), [(FailureKind.LOST, True), (FailureKind.OOM, False)])
def test_only_what_the_environment_ended_runs_again(kind: FailureKind, is_again: bool):
    failure = Failure(kind=kind, message="")
    assert is_retried(TUNE, failure) == is_again
    assert not is_retried(dataclasses.replace(TUNE, attempt=MAX_ATTEMPTS - 1), failure)
