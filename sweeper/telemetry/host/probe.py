"""Reads cores, memory, disks, pressure, /dev/shm and the trial's process tree (`HostProbe`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

from sweeper.core.probes import Probe, Reading
from sweeper.telemetry.host.machine import (
    Cores,
    Disks,
    HostSeries,
    Memory,
    Pressure,
    ProcessorEnergy,
    Shm,
    energy_zones,
)
from sweeper.telemetry.host.tree import Tree

_PRESSURES = (("io", "disk_wait_pct"), ("cpu", "cpu_pressure_pct"), ("memory", "memory_pressure_pct"))
"""The kernel's name of what is waited for, and its series."""


class HostProbe(Probe):
    """Reads the state of the machine and of the trial's tree from /proc and /sys.

    The files stay open and are read in place, because a reading takes time on a core that the trial
    may need.

    Attributes:
        name: Prefix of the series that has the cost of reading.
        missing: Why a series is absent, by its name.
    """

    name = "host"

    def __init__(self) -> None:
        self.missing: dict[str, str] = {}
        self._sources: list[HostSeries] = []

    def open(self, pid: int, device_uuid: str) -> None:
        """Opens the files and reads the counters' first values."""
        kinds: list[tuple[Sequence[str], Callable[[], HostSeries]]] = [
            (Cores.names, lambda: Cores(_usable_cores(pid))),
            (Tree.names, lambda: Tree(pid)),
            (Memory.names, Memory),
            (Disks.names, Disks),
            *(((name,), partial(Pressure, resource, name)) for resource, name in _PRESSURES),
            (Shm.names, Shm),
        ]
        if zones := energy_zones():
            kinds.append((ProcessorEnergy.names, lambda: ProcessorEnergy(zones)))
        for names, begin in kinds:
            try:
                self._sources.append(begin())
            except Exception as error:
                self._drop(names, error)
        self.read()

    def read(self) -> Reading:
        """Returns the current values; rates are over the time since the last reading."""
        values: dict[str, float] = {}
        for source in list(self._sources):
            try:
                values.update(source.read())
            except Exception as error:
                self._drop(source.names, error)
                self._sources.remove(source)
                source.close()
        return values

    def close(self) -> None:
        """Closes the files."""
        while self._sources:
            self._sources.pop().close()

    def _drop(self, names: Sequence[str], error: Exception) -> None:
        place = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else ""
        self.missing.update(dict.fromkeys(names, place or str(error) or type(error).__name__))


def _usable_cores(pid: int) -> list[int]:
    """Returns the cores that the trial may use, which can be fewer than the keeper's."""
    try:
        return sorted(os.sched_getaffinity(pid))
    except OSError:
        return sorted(os.sched_getaffinity(0))
