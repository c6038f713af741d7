"""Defines the protocol of probes: opened on a trial's device, read a few times per second.

`sweeper.telemetry.probes` lists the built-in ones, which sample every trial. A third party's probe is a class
derived from `Probe`, which `measure.probes` names.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sweeper.core.registry import Registry

Reading = Mapping[str, float]
"""Values by series name, with units in the names; an unsupported series is absent, never 0."""


class Probe:
    """A source of readings, used by one thread; none of its calls raises.

    A probe derives from this class and implements at least `read`.

    Attributes:
        name: A short name; the cost of reading is the series `<name>_read_ms`.
        missing: Why a series is absent or has ended, by the series' name.
        lost: Whether the trial's device was lost; `missing["gpu"]` says why.
    """

    name: str
    missing: Mapping[str, str] = MappingProxyType({})
    lost: bool = False

    def open(self, pid: int, device_uuid: str) -> None:
        """Starts, given the trial's process and its GPU's NVML UUID (empty if there is none)."""

    def read(self) -> Reading:
        """Returns the current values. Must be cheap: it is called while a window is open."""
        raise NotImplementedError

    def between(self) -> Reading:
        """Returns more expensive values; called before the first window and after each."""
        return {}

    def close(self) -> None:
        """Releases all resources."""


PROBES: Registry[type[Probe]] = Registry("`measure.probes`", Probe, {}, classes=True)
"""What `measure.probes` can name; the built-in probes sample every trial."""
