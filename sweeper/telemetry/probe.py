"""The seam for telemetry sources: a probe is opened on a trial's device and read now and then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

Reading = Mapping[str, float]
"""Values by series name, units in the names; what is not supported is absent, never 0."""


class Probe(Protocol):
    """A source of readings, used by one thread; none of its calls raises.

    Attributes:
        name: Short; its own cost is a series called `<name>_read_ms`.
        missing: Why a series is absent or has ended, by the series' name.
    """

    name: str
    missing: Mapping[str, str]

    def open(self, pid: int, device_uuid: str) -> None:
        """Begins: the trial's process, and the NVML UUID of its GPU (empty on a machine without)."""

    def read(self) -> Reading:
        """Returns the present values. Cheap: it is called while a window is open."""

    def between(self) -> Reading:
        """Returns values that cost more; called before the first window and after each."""

    def close(self) -> None:
        """Ends."""
