"""Readings of the host: processor, memory and disk, of the machine and of the trial's own tree."""

from __future__ import annotations

import time

import psutil

from sweeper.core.process import tree
from sweeper.core.process import usage as usage_of
from sweeper.telemetry.probe import Reading

GIB = 1024**3
MIB = 1024**2


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
        found = [usage for pid in tree(self._pid) if (usage := usage_of(pid))]
        return sum(each.cpu_seconds for each in found), sum(each.resident_bytes for each in found)

    def close(self) -> None:
        """Has nothing to end."""
