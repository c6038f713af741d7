"""Defines the protocol of launchers: one takes a job's folder and returns a handle on its outcome.

`sweeper.core.launchers` has the table of launchers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from sweeper.core.job import read_outcome
from sweeper.core.launchers import LAUNCHERS
from sweeper.core.measurement import Failure, FailureKind, Outcome, Report
from sweeper.core.place import TrialPlace
from sweeper.core.registry import resolve

if TYPE_CHECKING:
    from sweeper.launch.parcel import Parcel
    from sweeper.schema.sections import ExecutionOptions


class Handle(Protocol):
    """A running job: a subset of concurrent.futures.Future."""

    def done(self) -> bool:
        """Returns whether the job has ended."""

    def result(self, timeout: float | None = None) -> Outcome | Report:
        """Waits for the outcome and returns it; without one, returns a Failure of kind `lost`."""

    def cancel(self) -> bool:
        """Ends the job with all its processes; returns False if it had already ended."""

    def add_done_callback(self, fn: Callable[[Any], object], /) -> object:
        """Calls `fn` when the job has ended."""


@runtime_checkable
class PlacedHandle(Handle, Protocol):
    """A job that may run on another machine.

    Attributes:
        place: Where it runs; None while it waits. Its launcher writes it to the job's folder.
    """

    place: TrialPlace | None


class Launcher(Protocol):
    """Places jobs.

    A launcher derives from this class and implements `capacity`, `submit` and `close`.
    """

    @property
    def capacity(self) -> int:
        """The number of jobs that can run now; it may change as workers come and go."""
        raise NotImplementedError

    def submit(self, folder: Path) -> Handle:
        """Starts the job whose config.json is in `folder`."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends every job and everything that was started for them."""
        raise NotImplementedError

    @property
    def shares_machine(self) -> bool:
        """Whether jobs share this machine, so that their effect on each other is measured."""
        return False

    @property
    def model(self) -> str:
        """The sweep's device model; empty if the probe of the device reports it."""
        return ""

    @property
    def notes(self) -> Sequence[str]:
        """Lines about how jobs run, for the user."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """The arguments of a launcher's factory.

    Attributes:
        folder: The sweep's folder.
        execution: The `execution` section of the specification.
        gpus: GPUs that each job requests; 0 if jobs use none.
        parcel: Returns the common part of all jobs' parcels, for launchers that share no folder
            with their workers.
        max_jobs: Maximum number of concurrent jobs, if fewer than `execution` allows.
        model: The only device model to use; empty for the first worker's.
        say: Called with each line for the user.
    """

    folder: Path
    execution: ExecutionOptions
    gpus: int
    parcel: Callable[[], Parcel]
    max_jobs: int | None = None
    model: str = ""
    say: Callable[[str], None] = lambda line: None


def make_launcher(request: LaunchRequest) -> Launcher:
    """Returns the launcher that `execution.launcher` names.

    Raises:
        UserError: There is no such launcher, or it needs a package that is not installed.
        EnvironmentStopError: The cluster cannot be reached.
    """
    row = LAUNCHERS.get(request.execution.launcher)
    launcher: Launcher = resolve(row.factory)(request)
    return launcher


def outcome_or_lost(folder: Path) -> Outcome | Report:
    """Returns the outcome in `folder`, or a Failure of kind `lost` if there is none."""
    outcome = read_outcome(folder)
    if outcome is None:
        return Failure(kind=FailureKind.LOST, message="the worker ended and left no outcome")
    return outcome


def wait_any(handles: Sequence[Handle], timeout: float) -> None:
    """Waits until one of `handles` has ended, for at most `timeout` seconds."""
    ended = threading.Event()
    for handle in handles:
        handle.add_done_callback(lambda _: ended.set())
    ended.wait(timeout)
