"""Reads the state of the machine from /proc and /sys, through files that stay open."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter

from sweeper.core.units import GIB, MIB

PROC, BLOCK, SHM = Path("/proc"), Path("/sys/block"), Path("/dev/shm")
POWERCAP = Path("/sys/class/powercap")
MIN_SECONDS = 0.05
"""Minimum seconds for a rate. A kernel tick is 10 ms, so a shorter time mostly shows rounding."""
MAX_CORE_SERIES = 16
_SECTOR = 512


class KeptFile:
    """A kernel file that stays open for repeated reads of up to `size` bytes."""

    def __init__(self, path: Path, size: int = 4096) -> None:
        self._path, self._size = path, size
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> bytes:
        """Returns the current content.

        Raises:
            OSError: The process or device is gone, or the kernel does not provide the content.
        """
        try:
            return os.pread(self._descriptor, self._size, 0)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)


class HostSeries:
    """Some series from one source. A source that raises is not read again.

    Attributes:
        names: The series, without those of single cores.
    """

    names: Sequence[str] = ()

    def __init__(self, *files: KeptFile) -> None:
        self._files = list(files)

    def read(self) -> Mapping[str, float]:
        """Returns the current values."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes the files."""
        while self._files:
            self._files.pop().close()


Counts = Mapping[int, tuple[int, ...]]


class CounterSeries(HostSeries):
    """Rates from counters, over the time since the last reading; none at the first."""

    _last: tuple[float, Counts] | None = None

    def read(self) -> Mapping[str, float]:
        """Returns the rates; nothing if the last reading was just now."""
        counts, now = self._counts(), perf_counter()
        then, before = self._last or (now, counts)
        if self._last is not None and now - then < MIN_SECONDS:
            return {}
        self._last = now, counts
        return self._rates(before, counts, now - then) if now > then else {}

    def _counts(self) -> Counts:
        raise NotImplementedError

    def _rates(self, before: Counts, after: Counts, seconds: float) -> Mapping[str, float]:
        raise NotImplementedError


class Cores(CounterSeries):
    """Utilisation of the usable cores: the mean, the busiest, and each one if there are few."""

    names = ("cpu_util_pct", "cpu_max_core_pct")

    def __init__(self, cores: Sequence[int]) -> None:
        # The cores' lines come first; the rest can be long.
        super().__init__(KeptFile(PROC / "stat", 256 + 160 * (os.cpu_count() or 1)))
        self._cores = {b"cpu%d" % core: core for core in cores}
        self._has_series = len(cores) <= MAX_CORE_SERIES

    def _counts(self) -> Counts:
        counts = {}
        for line in self._files[0].read().split(b"\n"):
            if not line.startswith(b"cpu"):
                break
            name, *columns = line.split(None, 9)
            if name in self._cores:
                # user, nice, system, idle, iowait, irq, softirq, steal; user includes guest.
                ticks = [int(column) for column in columns[:8]]
                counts[self._cores[name]] = sum(ticks), ticks[3] + ticks[4]
        if not counts:
            raise ValueError(f"{PROC / 'stat'} does not list the usable cores")
        return counts

    def _rates(self, before: Counts, after: Counts, seconds: float) -> Mapping[str, float]:
        busy: dict[int, float] = {}
        for core, (total, idle) in after.items():
            total_before, idle_before = before.get(core, (total, idle))
            if total > total_before:
                share = 1 - (idle - idle_before) / (total - total_before)
                # Idle and iowait times may run backwards by a tick.
                busy[core] = 100 * min(1.0, max(0.0, share))
        if not busy:
            return {}
        rates = {"cpu_util_pct": sum(busy.values()) / len(busy), "cpu_max_core_pct": max(busy.values())}
        if self._has_series:
            rates.update({f"cpu_core_{core}_pct": share for core, share in busy.items()})
        return rates


class Memory(HostSeries):
    """The machine's memory; memory that is not available counts as used."""

    names = ("host_mem_used_gib", "host_mem_used_pct")

    def __init__(self) -> None:
        super().__init__(KeptFile(PROC / "meminfo", 256))

    def read(self) -> Mapping[str, float]:
        """Returns the used GiB and their share of the total."""
        text = self._files[0].read()
        total, available = (
            int(text.partition(key)[2].split(None, 1)[0]) for key in (b"MemTotal:", b"MemAvailable:")
        )
        used = total - available
        return {"host_mem_used_gib": used * 1024 / GIB, "host_mem_used_pct": 100 * used / total}


class Disks(CounterSeries):
    """Reads from the machine's physical disks, without devices built on them (md, dm, loop)."""

    names = ("disk_read_mib_s",)

    def __init__(self) -> None:
        disks = [disk for disk in BLOCK.iterdir() if (disk / "device").exists() and not _is_hidden(disk)]
        if not disks:
            raise ValueError(f"no disk in {BLOCK}")
        super().__init__(*(KeptFile(disk / "stat", 256) for disk in disks))

    def _counts(self) -> Counts:
        return {0: (sum(int(file.read().split(None, 3)[2]) for file in self._files),)}

    def _rates(self, before: Counts, after: Counts, seconds: float) -> Mapping[str, float]:
        return {"disk_read_mib_s": max(0, after[0][0] - before[0][0]) * _SECTOR / MIB / seconds}


def _is_hidden(disk: Path) -> bool:
    """Returns whether a disk is only a path to another one, which counts the same reads."""
    with contextlib.suppress(OSError):
        return (disk / "hidden").read_text(encoding="ascii").strip() == "1"
    return False


class Pressure(CounterSeries):
    """PSI: the share of time in which some task on the machine waited for a resource."""

    def __init__(self, resource: str, name: str) -> None:
        super().__init__(KeptFile(PROC / "pressure" / resource, 256))
        self.names = (name,)

    def _counts(self) -> Counts:
        # some avg10=0.00 avg60=0.00 avg300=0.00 total=<microseconds>
        return {0: (int(self._files[0].read().partition(b"total=")[2].split(None, 1)[0]),)}

    def _rates(self, before: Counts, after: Counts, seconds: float) -> Mapping[str, float]:
        return {self.names[0]: min(100.0, 100 * (after[0][0] - before[0][0]) / 1e6 / seconds)}


class ProcessorEnergy(CounterSeries):
    """The power of the processors and their memory, from RAPL (on AMD's processors, too).

    Many systems let only root read it, because it reveals what others compute.
    """

    names = ("cpu_power_w",)

    def __init__(self, zones: Sequence[Path]) -> None:
        self._ranges = [int((zone / "max_energy_range_uj").read_text(encoding="ascii")) for zone in zones]
        super().__init__(*(KeptFile(zone / "energy_uj", 64) for zone in zones))

    def _counts(self) -> Counts:
        return {index: (int(file.read()),) for index, file in enumerate(self._files)}

    def _rates(self, before: Counts, after: Counts, seconds: float) -> Mapping[str, float]:
        # Each counter starts again at 0 after its range.
        used = sum((after[i][0] - before[i][0]) % (max_count + 1) for i, max_count in enumerate(self._ranges))
        return {"cpu_power_w": used / 1e6 / seconds}


def energy_zones() -> list[Path]:
    """Returns the RAPL zones to add up: none is part of another. Most virtual machines have none."""
    return [path for path in sorted(POWERCAP.glob("intel-rapl:*")) if _is_counted(path)]


def _is_counted(zone: Path) -> bool:
    """Returns whether a zone covers a whole processor (cores included) or its memory."""
    try:
        name = (zone / "name").read_text(encoding="ascii").strip()
    except OSError:
        # Containers hide the target of the link.
        return False
    return name.startswith("package") or name == "dram"


class Shm(HostSeries):
    """Shared memory, through which loader workers pass batches."""

    names = ("shm_used_gib", "shm_free_gib")

    def __init__(self) -> None:
        if not os.path.ismount(os.path.realpath(SHM)):
            raise ValueError(f"{SHM} is not mounted")
        super().__init__()

    def read(self) -> Mapping[str, float]:
        """Returns the used and the free GiB."""
        stats = os.statvfs(SHM)
        return {
            "shm_used_gib": (stats.f_blocks - stats.f_bfree) * stats.f_frsize / GIB,
            "shm_free_gib": stats.f_bavail * stats.f_frsize / GIB,
        }
