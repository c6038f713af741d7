"""Reads the processor time and memory of a trial's process tree."""

from __future__ import annotations

import os
from collections.abc import Mapping
from time import perf_counter

from sweeper.core.units import GIB
from sweeper.system.process import tree
from sweeper.telemetry.host.machine import PROC, CounterSeries, Counts, KeptFile

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
LOOK_SECONDS = 1.0
"""Seconds between two searches for new processes; a search reads a file per thread."""


class Tree(CounterSeries):
    """Processor time of the tree, and of the processes that the trial started; 100% is one core."""

    names = ("tree_cpu_pct", "loader_cpu_pct", "tree_mem_gib")

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._root = pid
        self._processes: dict[int, KeptFile] = {}
        self._looked = -LOOK_SECONDS
        self._pages = 0

    def read(self) -> Mapping[str, float]:
        """Returns the rates in percent of a core, and the memory in GiB."""
        if perf_counter() - self._looked >= LOOK_SECONDS:
            self._look()
        rates = super().read()
        return {**rates, "tree_mem_gib": self._pages * _PAGE / GIB}

    def _look(self) -> None:
        self._looked = perf_counter()
        for pid in tree(self._root):
            if pid not in self._processes:
                try:
                    self._processes[pid] = KeptFile(PROC / str(pid) / "stat", 1024)
                except OSError:
                    continue

    def _counts(self) -> Counts:
        counts, self._pages = {}, 0
        for pid, file in list(self._processes.items()):
            try:
                fields = file.read().rpartition(b")")[2].split(None, 22)
            except OSError:
                self._processes.pop(pid).close()
                # Find its successor, such as the next epoch's worker, without waiting a second.
                self._looked = -LOOK_SECONDS
                continue
            counts[pid] = (int(fields[11]) + int(fields[12]),)
            self._pages += int(fields[21])
        return counts

    def _rates(self, before: Counts, after: Counts, seconds: float) -> Mapping[str, float]:
        # A process is found up to a second after its start, so a new one counts with at most the
        # time since the last reading. The time of a process that exited is lost.
        passed = round(seconds * _TICKS)
        cpu_ticks = {
            pid: max(0, ticks - before[pid][0]) if pid in before else min(ticks, passed)
            for pid, (ticks,) in after.items()
        }
        to_percent = 100 / _TICKS / seconds
        started = sum(ticks for pid, ticks in cpu_ticks.items() if pid != self._root)
        return {
            "tree_cpu_pct": (started + cpu_ticks.get(self._root, 0)) * to_percent,
            "loader_cpu_pct": started * to_percent,
        }

    def close(self) -> None:
        """Closes the files."""
        while self._processes:
            self._processes.popitem()[1].close()
