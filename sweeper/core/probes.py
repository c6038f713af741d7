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
    """A source of readings, used by one thread.

    A probe derives from this class and implements at least `read`. A built-in probe must not raise. A third
    party's may, and is then given up. Its readings between windows are called slow in the sampler
    (`sweeper.telemetry.sampler`).

    Attributes:
        name: A short name; the cost of reading is the series `<name>_read_ms`.
        missing: Why a series is absent or has ended, by the series' name.
        lost: For built-in probes of GPUs: whether a GPU was lost; `missing["gpu"]` says why.
    """

    name: str
    missing: Mapping[str, str] = MappingProxyType({})
    lost: bool = False

    def open(self, pid: int, device_uuid: str) -> None:
        """Starts, given the trial's process and its GPU's NVML UUID (empty if there is none)."""

    def read(self) -> Reading:
        """Returns the current values. Must be fast: it is called while a window is open."""
        raise NotImplementedError

    def read_between_windows(self) -> Reading:
        """Returns slow readings, too expensive for `read`; called before the first window and after each."""
        # A third party's probe may still define the former name alone.
        return self.between()

    def between(self) -> Reading:
        """The former name of `read_between_windows`, under which a probe may still define it."""
        return {}

    def close(self) -> None:
        """Releases all resources."""


THIRD_PARTY_PROBES: Registry[type[Probe]] = Registry("`measure.probes`", Probe, {}, classes=True)
"""What `measure.probes` can name: import strings alone, as the built-in probes sample every trial."""
