"""Reads a GPU through NVML (`NvmlProbe`). A reading that fails does not affect the others."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sweeper.core.probes import Probe, Reading
from sweeper.telemetry.nvml.binding import find, is_final, is_lost, problem, reason, start
from sweeper.telemetry.nvml.processes import ForeignProcesses
from sweeper.telemetry.nvml.readings import NOT_OF_A_PART, ReadingSource, readings

FAILURES_IN_A_ROW = 3
"""Consecutive temporary failures after which a reading is given up."""


@dataclass(slots=True)
class _WantedSource:
    """A source, and those of its series that are still wanted."""

    source: ReadingSource
    wanted: set[str]


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
        self._why: dict[str, str] = {}
        self.missing: Mapping[str, str] = self._why
        self.lost = False
        self._nvml: Any = None
        self._cheap: list[_WantedSource] = []
        self._expensive: list[_WantedSource] = []
        self._sources: list[ReadingSource] = []
        self._in_a_row: dict[str, int] = {}

    def open(self, pid: int, device_uuid: str) -> None:
        """Finds the GPU and reads the counters' first values; without a GPU, does nothing."""
        if not device_uuid:
            return
        try:
            self._nvml = start()
            device = find(self._nvml, device_uuid)
        except Exception as error:
            self._give_up(error)
            return
        if device.is_part:
            self._why.update(NOT_OF_A_PART)
        for source in readings(self._nvml, device):
            self._keep(self._cheap, source, source.names)
        foreign = ForeignProcesses(self._nvml, device, pid)
        self._keep(self._expensive, ReadingSource(foreign.names, foreign.read), foreign.names)
        self._read(self._cheap)

    def read(self) -> Reading:
        """Returns the cheap readings."""
        return self._read(self._cheap)

    def between(self) -> Reading:
        """Returns the use of the GPU by other processes since the last call, or since `open`."""
        return self._read(self._expensive)

    def close(self) -> None:
        """Releases NVML."""
        for source in self._sources:
            with contextlib.suppress(Exception):
                source.close()
        for kept in (self._sources, self._cheap, self._expensive):
            kept.clear()
        if self._nvml is not None:
            with contextlib.suppress(Exception):
                self._nvml.nvmlShutdown()
            self._nvml = None

    def _keep(self, into: list[_WantedSource], source: ReadingSource, names: tuple[str, ...]) -> None:
        for kept in into:
            if kept.source is source:
                kept.wanted.update(names)
                return
        self._sources.append(source)
        into.append(_WantedSource(source, set(names)))

    def _read(self, sources: list[_WantedSource]) -> dict[str, float]:
        values: dict[str, float] = {}
        # A fallback source is appended and read in this loop; a lost GPU empties the list.
        for kept in sources:
            try:
                reading = kept.source.read()
            except Exception as error:
                reading = dict.fromkeys(kept.source.names, error)
            for name in kept.source.names:
                value = reading.get(name)
                if name not in kept.wanted or value is None:
                    continue
                if isinstance(value, Exception):
                    self._note_failure(sources, kept, name, value)
                else:
                    values[name] = value
                    self._in_a_row.pop(name, None)
        sources[:] = [kept for kept in sources if kept.wanted]
        return values

    def _note_failure(
        self, sources: list[_WantedSource], kept: _WantedSource, name: str, error: Exception
    ) -> None:
        if is_lost(error):
            self._give_up(error)
            return
        failures = self._in_a_row[name] = self._in_a_row.get(name, 0) + 1
        if not is_final(error) and failures < FAILURES_IN_A_ROW:
            return
        kept.wanted.discard(name)
        del self._in_a_row[name]
        instead = kept.source.instead
        if instead is not None and name in instead.names:
            self._keep(sources, instead, (name,))
        else:
            often = "" if is_final(error) else f", {failures} times in a row"
            self._why[name] = reason(error) + often

    def _give_up(self, error: Exception) -> None:
        self.lost = is_lost(error)
        self._why["gpu"] = problem(error)
        self._cheap.clear()
        self._expensive.clear()
