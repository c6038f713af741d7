"""Reads a GPU through NVML (`NvmlProbe`). A reading that fails does not affect the others."""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass
from typing import Any

from sweeper.core.probes import Probe, Reading
from sweeper.telemetry.nvml.binding import find_device, is_final, is_lost, open_nvml, why_absent, why_unusable
from sweeper.telemetry.nvml.processes import ForeignProcesses
from sweeper.telemetry.nvml.readings import NOT_OF_A_MIG_INSTANCE, ReadingSource, reading_sources

FAILURES_IN_A_ROW = 3
"""Consecutive temporary failures after which a reading is given up."""


@dataclass(slots=True)
class _WantedSource:
    """A source, and those of its series that are still wanted."""

    source: ReadingSource
    wanted: set[str]

    def read(self) -> dict[str, float | Exception]:
        """Returns the new values of the wanted series, or why one is absent."""
        try:
            reading = self.source.read()
        except Exception as error:
            reading = dict.fromkeys(self.source.names, error)
        names = (name for name in self.source.names if name in self.wanted)
        return {name: value for name in names if (value := reading.get(name)) is not None}


class NvmlProbe(Probe):
    """Memory, power, temperature, clocks and traffic; how much of the GPU is active (GPM).

    `gpu_util_pct` is NVML's: the share of time with any kernel running, even on one SM of 132.

    Attributes:
        name: Prefix of the series that has the cost of reading.
        missing: Why a series is absent or has ended, by its name; `gpu` if there are none at all.
        lost: Whether the GPU was lost.
    """

    name = "nvml"

    def __init__(self) -> None:
        self.missing: dict[str, str] = {}
        self.lost = False
        self._nvml: Any = None
        self._fast: list[_WantedSource] = []
        self._slow: list[_WantedSource] = []
        self._opened: list[ReadingSource] = []
        self._in_a_row: dict[str, int] = {}

    def open(self, pid: int, device_uuid: str) -> None:
        """Finds the GPU and reads the counters' first values; without a GPU, does nothing."""
        if not device_uuid:
            return
        try:
            self._nvml = open_nvml()
            device = find_device(self._nvml, device_uuid)
        except Exception as error:
            self._give_up(error)
            return
        if device.is_mig_instance:
            self.missing.update(NOT_OF_A_MIG_INSTANCE)
        for source in reading_sources(self._nvml, device):
            self._want(self._fast, source, source.names)
        foreign = ForeignProcesses(self._nvml, device, pid)
        self._want(self._slow, ReadingSource(foreign.names, foreign.read), foreign.names)
        self._read_sources(self._fast)

    def read(self) -> Reading:
        """Returns the fast readings."""
        return self._read_sources(self._fast)

    def read_between_windows(self) -> Reading:
        """Returns the use of the GPU by other processes since the last call, or since `open`."""
        return self._read_sources(self._slow)

    def close(self) -> None:
        """Releases NVML."""
        for source in self._opened:
            with contextlib.suppress(Exception):
                source.close()
        for sources in (self._opened, self._fast, self._slow):
            sources.clear()
        if self._nvml is not None:
            with contextlib.suppress(Exception):
                self._nvml.nvmlShutdown()
            self._nvml = None

    def _want(
        self, sources: list[_WantedSource], source: ReadingSource, names: tuple[str, ...]
    ) -> list[_WantedSource]:
        """Adds series of `source` to those that are wanted; returns it if it is new among `sources`."""
        for present in sources:
            if present.source is source:
                present.wanted.update(names)
                return []
        self._opened.append(source)
        added = _WantedSource(source, set(names))
        sources.append(added)
        return [added]

    def _read_sources(self, sources: list[_WantedSource]) -> dict[str, float]:
        values: dict[str, float] = {}
        queue = deque(sources)
        while queue and not self.lost:
            current = queue.popleft()
            for name, value in current.read().items():
                if not isinstance(value, Exception):
                    values[name] = value
                    self._in_a_row.pop(name, None)
                elif fallback := self._note_failure(current, name, value):
                    queue.extend(self._want(sources, fallback, (name,)))
        sources[:] = [source for source in sources if source.wanted]
        return values

    def _note_failure(self, current: _WantedSource, name: str, error: Exception) -> ReadingSource | None:
        """Returns the source that the series is read from instead, if this one is given up and has any."""
        if is_lost(error):
            self._give_up(error)
            return None
        failures = self._in_a_row[name] = self._in_a_row.get(name, 0) + 1
        if not is_final(error) and failures < FAILURES_IN_A_ROW:
            return None
        current.wanted.discard(name)
        del self._in_a_row[name]
        fallback = current.source.fallback
        if fallback is not None and name in fallback.names:
            return fallback
        often = "" if is_final(error) else f", {failures} times in a row"
        self.missing[name] = why_absent(error) + often
        return None

    def _give_up(self, error: Exception) -> None:
        self.lost = is_lost(error)
        self.missing["gpu"] = why_unusable(error)
        self._fast.clear()
        self._slow.clear()
