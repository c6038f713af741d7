"""Messages of a running job to its keeper: stage, device, timed windows, steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Literal, Protocol, get_args

from sweeper.core.measurement import DeviceInfo, Window

LimitedStage = Literal["build", "compile", "warmup", "window", "quality"]
"""Those that a limit can be set for."""

STAGES = ("start", *get_args(LimitedStage))
"""Of a trial, in their order; `compile` comes again with every shape that is compiled later."""

TRAINING_STAGE = "training"
"""A production run's, after `build`."""

STEPPING = frozenset({"warmup", "window", "quality", TRAINING_STAGE})
"""Stages of steps without an end of their own: one in which they stop coming has stalled."""


class Steps(Protocol):
    """Counts the steps of training and of validation, so that a keeper sees that a job goes on."""

    def add(self) -> None:
        """Counts a step."""

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """No steps are taken meanwhile, and none are missed: a checkpoint, a wait for one's turn."""


class Progress(Protocol):
    """Receives the milestones of a job; telemetry is cut to the windows it hears of.

    Attributes:
        reached: The latest stage.
        steps: Where each step is counted.
    """

    reached: str
    steps: Steps

    def stage(self, name: str) -> None:
        """The job has reached one of `STAGES`, or a stage of its own."""

    def device(self, info: DeviceInfo) -> None:
        """The job runs on this device."""

    def window(self, window: Window) -> Sequence[str]:
        """A timed window has ended; returns what disturbed it, as far as telemetry tells."""


class OwnSteps:
    """A counter that nobody else sees.

    Attributes:
        count: Steps so far.
        pauses: How many pauses it is in.
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


class Silent:
    """Progress that nobody listens to; it knows how far the job has got."""

    def __init__(self) -> None:
        self.reached = ""
        self.steps: Steps = OwnSteps()

    def stage(self, name: str) -> None:
        """Notes it."""
        self.reached = name

    def device(self, info: DeviceInfo) -> None:
        """Passes over it."""

    def window(self, window: Window) -> Sequence[str]:
        """Knows nothing of it."""
        return ()


class TrialFailedError(Exception):
    """Raised inside a job for a finding with a known kind; becomes a Failure in its outcome."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
