"""Defines the messages of a running job to its keeper: stage, device, timed windows, steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Literal, Protocol, get_args

from sweeper.core.measurement import DeviceInfo, Window

LimitedStage = Literal["build", "compile", "warmup", "window", "quality"]
"""Stages that can have a time limit."""

STAGES = ("start", *get_args(LimitedStage))
"""The stages of a trial in order; `compile` recurs with every shape that is compiled later."""

TRAINING_STAGE = "training"
"""A production run's stage after `build`."""

STEPPING = frozenset({"warmup", "window", "quality", TRAINING_STAGE})
"""Stages made of steps: a job whose steps stop in one of these has stalled."""


class Steps(Protocol):
    """Counts the steps of training and validation, so that a keeper sees a job's progress."""

    def add(self) -> None:
        """Counts a step."""

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """Marks a time in which no steps are expected: a checkpoint, a wait for its turn."""


class Progress(Protocol):
    """Receives the milestones of a job; telemetry is cut to the windows reported here.

    Attributes:
        reached: The latest stage.
        steps: The counter of steps.
    """

    reached: str
    steps: Steps

    def stage(self, name: str) -> None:
        """Reports that the job has reached one of `STAGES`, or a custom stage."""

    def device(self, info: DeviceInfo) -> None:
        """Reports the device that the job runs on."""

    def window(self, window: Window) -> Sequence[str]:
        """Reports that a timed window has ended; returns the disturbances that telemetry shows in it."""


class LocalSteps:
    """A counter that only this process sees.

    Attributes:
        count: Steps so far.
        pauses: Number of pauses in progress.
    """

    def __init__(self) -> None:
        self.count = self.pauses = 0

    def add(self) -> None:
        """Counts a step."""
        self.count += 1

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Counts the pause while it lasts."""
        self.pauses += 1
        try:
            yield
        finally:
            self.pauses -= 1


class SilentProgress:
    """Progress without a listener; it keeps only the latest stage."""

    def __init__(self) -> None:
        self.reached = ""
        self.steps: Steps = LocalSteps()

    def stage(self, name: str) -> None:
        """Keeps the stage."""
        self.reached = name

    def device(self, info: DeviceInfo) -> None:
        """Does nothing."""

    def window(self, window: Window) -> Sequence[str]:
        """Returns no disturbances."""
        return ()


class TrialFailedError(Exception):
    """Raised inside a job for a finding with a known kind; becomes a Failure in its outcome."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
