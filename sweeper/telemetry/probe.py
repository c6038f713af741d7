"""The seam for telemetry sources: a probe is opened on a trial's device and read now and then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

Reading = Mapping[str, float]
"""Values by series name, units in the names; what is not supported is absent, never 0."""


class Probe(Protocol):
    """A source of readings. `read` is cheap, and may leave out whatever it cannot tell."""

    def open(self, pid: int, device_uuid: str) -> None:
        """Begins: the trial's process, and the NVML UUID of its GPU (empty on a machine without)."""

    def read(self) -> Reading:
        """Returns the present values."""

    def close(self) -> None:
        """Ends."""
