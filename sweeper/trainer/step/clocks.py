"""Times the phases of a step, on the host's clock or on the device's."""

from __future__ import annotations

import itertools
import time
from typing import Protocol

import torch

DATA, H2D, FORWARD, BACKWARD, OPTIMIZER, GRAPH = range(6)
"""Phases of a step; a captured one has DATA, H2D and GRAPH."""

NUM_PHASES = 6
ARITHMETIC = (FORWARD, BACKWARD, OPTIMIZER, GRAPH)


class Clock(Protocol):
    """Measures the phases of a step from their ends."""

    def start(self) -> None:
        """Marks the start of a step."""

    def mark(self, phase: int) -> None:
        """Marks the end of `phase`, where the next one starts."""


class NoClock:
    """Measures nothing."""

    def start(self) -> None:
        """Does nothing."""

    def mark(self, phase: int) -> None:
        """Does nothing."""


class HostClock:
    """Phase times on the host's clock, valid for synchronous operations (on the CPU)."""

    def __init__(self) -> None:
        self.seconds = [0.0] * NUM_PHASES
        self._last = 0.0

    def start(self) -> None:
        """Marks the start of a step."""
        self._last = time.perf_counter()

    def mark(self, phase: int) -> None:
        """Adds the time since the last mark to `phase`."""
        now = time.perf_counter()
        self.seconds[phase] += now - self._last
        self._last = now


class BusyClock:
    """Wall and processor seconds by phase; the latter include all threads of this process."""

    def __init__(self) -> None:
        self.wall = [0.0] * NUM_PHASES
        self.cpu = [0.0] * NUM_PHASES
        self._last = (0.0, 0.0)

    def start(self) -> None:
        """Marks the start of a step."""
        self._last = (time.perf_counter(), time.process_time())

    def mark(self, phase: int) -> None:
        """Adds the time since the last mark to `phase`."""
        wall, cpu = time.perf_counter(), time.process_time()
        self.wall[phase] += wall - self._last[0]
        self.cpu[phase] += cpu - self._last[1]
        self._last = (wall, cpu)


class EventClock:
    """Phase times on the device's timeline, read after the last step without syncs in between.

    While the host waits, the device is idle between two events, so that the phases of consecutive
    steps add up to the wall time.
    """

    def __init__(self) -> None:
        self._marks: list[tuple[int, torch.cuda.Event]] = []

    def _record(self, phase: int) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append((phase, event))

    def start(self) -> None:
        """Marks the start of a step."""
        self._record(-1)

    def mark(self, phase: int) -> None:
        """Marks the end of a phase, in order."""
        self._record(phase)

    @property
    def seconds(self) -> list[float]:
        """Seconds by phase; call after synchronising."""
        totals = [0.0] * NUM_PHASES
        for (_, begin), (phase, end) in itertools.pairwise(self._marks):
            if phase >= 0:
                totals[phase] += begin.elapsed_time(end) / 1e3
        return totals
