"""Tests of timings, on machines that are not theirs alone."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable

import pytest

from sweeper.system.process import waited_seconds
from sweeper.trainer.timing.conditions import read_conditions

TRIES = 4
SHARE = 0.05
"""Of the time of a test: so much waiting for a core may be why it failed."""


def undisturbed(test: Callable[..., None]) -> Callable[..., None]:
    """Repeats a test that fails while others have its core, and skips it if that goes on.

    It is for what is seen in real time alone. Where nobody else takes the cores, a failure is one at once.
    """

    @functools.wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        for _ in range(TRIES):
            is_disturbed = disturbed()
            try:
                return test(*args, **kwargs)
            except AssertionError:
                if not is_disturbed():
                    raise
        pytest.skip("this machine is busy")

    return run


def disturbed() -> Callable[[], bool]:
    """Returns what tells, from now on, whether others had this process's cores."""
    began, before = time.monotonic(), _lost_seconds()
    return lambda: _lost_seconds() - before > SHARE * (time.monotonic() - began)


def _lost_seconds() -> float:
    """Returns the seconds for which this process wanted a core and had none, or a hypervisor had taken it."""
    return (waited_seconds(os.getpid()) or 0.0) + read_conditions().steal_seconds
