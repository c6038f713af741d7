"""What else went on while a window was open: processor time, stolen cores, pressure, a canary."""

from __future__ import annotations

import hashlib
import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.process import involuntary_switches, tree, usage

_TICKS = os.sysconf("SC_CLK_TCK")
_CANARY = bytes(2**20)
_CANARY_ROUNDS = 18


@dataclass(frozen=True, slots=True)
class Conditions:
    """Counters at one moment; of two moments, the difference is what happened between them."""

    cpu_seconds: float
    involuntary_switches: int
    steal_seconds: float
    pressure_seconds: float | None
    load: float


def read_conditions() -> Conditions:
    """Returns the counters of this process's tree, and of the machine, now."""
    own, reaped = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = own.ru_utime + own.ru_stime + reaped.ru_utime + reaped.ru_stime
    switches = own.ru_nivcsw + reaped.ru_nivcsw
    for pid in tree(os.getpid()):
        found = usage(pid) if pid != os.getpid() else None
        if found is not None:
            cpu += found.cpu_seconds + found.reaped_seconds
            switches += involuntary_switches(pid)
    return Conditions(cpu, switches, _steal_seconds(), _pressure_seconds(), os.getloadavg()[0])


def _steal_seconds() -> float:
    try:
        with open("/proc/stat", encoding="ascii") as file:
            return int(file.readline().split()[8]) / _TICKS
    except (OSError, IndexError, ValueError):
        return 0.0


def _pressure_seconds() -> float | None:
    try:
        text = Path("/proc/pressure/cpu").read_text(encoding="ascii")
        return int(text.partition("total=")[2].split()[0]) / 1e6
    except (OSError, IndexError, ValueError):
        return None


def canary_ms() -> float:
    """Returns the milliseconds that some fixed work takes: about 20 on one quiet core.

    A hash, because it needs neither the interpreter's lock nor memory beyond the cache, and no
    thread of torch's.
    """
    began = time.perf_counter()
    for _ in range(_CANARY_ROUNDS):
        hashlib.blake2b(_CANARY)
    return 1e3 * (time.perf_counter() - began)
