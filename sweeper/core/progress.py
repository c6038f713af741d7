"""What a running job tells its keeper while it runs: the stage, the device, the timed windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sweeper.core.measurement import DeviceInfo, Window


class Progress(Protocol):
    """Receives the milestones of a job; telemetry is cut to the windows it hears of."""

    def stage(self, name: str) -> None:
        """The job has reached `start`, `build`, `warmup`, `window` or `quality`."""

    def device(self, info: DeviceInfo) -> None:
        """The job runs on this device."""

    def window(self, window: Window) -> Sequence[str]:
        """A timed window has ended; returns what disturbed it, as far as telemetry tells."""


class Silent:
    """Progress that nobody listens to; it knows how far the job has got."""

    def __init__(self) -> None:
        self.reached = ""

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
