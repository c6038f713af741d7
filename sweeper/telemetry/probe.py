"""The protocol of probes: opened on a trial's device, read a few times per second.

`sweeper.telemetry.probes` has the table of probes. `sweeper.testing.probe_conformance` is the suite that each
one has to pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

Reading = Mapping[str, float]
"""Values by series name, units in the names; what is not supported is absent, never 0."""


class Probe(Protocol):
    """A source of readings, used by one thread; none of its calls raises.

    A probe derives from this class and implements `read`, and what else it needs.

    Attributes:
        name: Short; its own cost is a series called `<name>_read_ms`.
        missing: Why a series is absent or has ended, by the series' name.
        lost: Whether the trial's device went away meanwhile; `missing["gpu"]` says why.
    """

    name: str
    missing: Mapping[str, str] = MappingProxyType({})
    lost: bool = False

    def open(self, pid: int, device_uuid: str) -> None:
        """Begins: the trial's process, and the NVML UUID of its GPU (empty on a machine without)."""

    def read(self) -> Reading:
        """Returns the present values. Cheap: it is called while a window is open."""
        raise NotImplementedError

    def between(self) -> Reading:
        """Returns values that cost more; called before the first window and after each."""
        return {}

    def close(self) -> None:
        """Ends."""
