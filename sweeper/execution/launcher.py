"""The seam for placing workers: a launcher takes a job's folder and gives a handle on its outcome."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from sweeper.core.job import read_outcome
from sweeper.core.measurement import Failure, FailureKind, Outcome, Report


class Handle(Protocol):
    """A job under way: what concurrent.futures.Future has of it.

    One that may run elsewhere has a `place` as well (`sweeper.core.place.Place`), and writes that itself.
    """

    def done(self) -> bool:
        """Whether it has ended."""

    def result(self, timeout: float | None = None) -> Outcome | Report:
        """Waits for the outcome; a job without one is a Failure of kind `lost`."""

    def cancel(self) -> bool:
        """Ends it, with all its processes."""

    def add_done_callback(self, fn: Callable[[Any], object], /) -> object:
        """Calls `fn` when it has ended."""


class Launcher(Protocol):
    """Places workers."""

    @property
    def capacity(self) -> int:
        """How many jobs may run at once now: workers may come and go."""

    def submit(self, folder: Path) -> Handle:
        """Starts the job whose config.json is in `folder`."""

    def close(self) -> None:
        """Ends every job, and whatever was started for them."""


def outcome_or_lost(folder: Path) -> Outcome | Report:
    """Returns the outcome in `folder`; without one the attempt is lost."""
    found = read_outcome(folder)
    if found is None:
        return Failure(kind=FailureKind.LOST, message="the worker ended and left no outcome")
    return found


def wait_any(handles: Sequence[Handle], timeout: float) -> None:
    """Waits until one of `handles` has ended, or `timeout` seconds are over."""
    ended = threading.Event()
    for handle in handles:
        handle.add_done_callback(lambda _: ended.set())
    ended.wait(timeout)
