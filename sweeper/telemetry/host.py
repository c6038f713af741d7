"""Readings of the host: processor, memory and disk, of the machine and of the trial's own tree."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from sweeper.telemetry.probe import Reading

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
GIB = 1024**3
MIB = 1024**2


def children(pid: int) -> Iterator[int]:
    """Yields the processes that `pid` has started or adopted, ended ones that it has not reaped included."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return
    for task in tasks:
        with contextlib.suppress(OSError):
            yield from map(int, (task / "children").read_text().split())


def tree(pid: int) -> Iterator[int]:
    """Yields `pid` and all its descendants, as far as they are alive."""
    yield pid
    for child in children(pid):
        yield from tree(child)


class HostProbe:
    """CPU, memory and disk through psutil and /proc; rates are over the time since the last read."""

    def __init__(self) -> None:
        self._pid = 0
        self._last: tuple[float, float, float] | None = None

    def open(self, pid: int, device_uuid: str) -> None:
        """Begins with the trial's process."""
        self._pid = pid
        psutil.cpu_percent(None)

    def read(self) -> Reading:
        """Returns machine-wide CPU use and memory, the tree's CPU and memory, and the disk reads."""
        now = time.perf_counter()
        cpu_seconds, resident = self._tree()
        disk = psutil.disk_io_counters()
        read_bytes = float(disk.read_bytes) if disk else 0.0
        values = {
            "cpu_util_pct": psutil.cpu_percent(None),
            "host_mem_used_gib": (lambda m: (m.total - m.available) / GIB)(psutil.virtual_memory()),
            "tree_mem_gib": resident / GIB,
        }
        if self._last is not None:
            then, cpu_then, disk_then = self._last
            elapsed = max(now - then, 1e-6)
            # A worker that ended takes its CPU seconds with it.
            values["tree_cpu_pct"] = max(0.0, 100 * (cpu_seconds - cpu_then) / elapsed)
            values["disk_read_mib_s"] = (read_bytes - disk_then) / MIB / elapsed
        self._last = (now, cpu_seconds, read_bytes)
        return values

    def _tree(self) -> tuple[float, float]:
        cpu = resident = 0.0
        for pid in tree(self._pid):
            try:
                with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            cpu += (int(fields[11]) + int(fields[12])) / _TICKS
            resident += int(fields[21]) * _PAGE
        return cpu, resident

    def close(self) -> None:
        """Has nothing to end."""
