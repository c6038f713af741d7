"""Records the conditions during a window: processor time, waiting, steal, a canary."""

from __future__ import annotations

import hashlib
import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.measurement import Window
from sweeper.system.process import involuntary_switches, ran_seconds, tree, usage, waited_seconds

_TICKS = os.sysconf("SC_CLK_TCK")
_CANARY = bytes(2**20)
_CANARY_ROUNDS = 18
CANARIES = 5
"""Number of canaries whose best time is that of a quiet machine."""
_HELPER_SHARE = 0.1
# Columns of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal.
_BUSY, _STEAL = (0, 1, 2, 5, 6), 7


@dataclass(frozen=True, slots=True)
class Conditions:
    """Counters at one moment, to be subtracted from those of a later one.

    Attributes:
        cpu_seconds: Processor time of this process's tree.
        helper_cpu_seconds: The part of it that the tree's other processes used.
        waited_seconds: Time in which threads of the tree waited for a core; None if unknown.
        busy_seconds: Processor time of all processes on the cores that this one may use.
        steal_seconds: Time that the host took from those cores.
        pressure_seconds: Time in which any process waited for a core; None if unknown.
    """

    cpu_seconds: float
    helper_cpu_seconds: float
    waited_seconds: float | None
    busy_seconds: float
    steal_seconds: float
    pressure_seconds: float | None
    involuntary_switches: int
    minor_faults: int
    load: float


def read_conditions() -> Conditions:
    """Returns the current counters of this process's tree and of the machine."""
    process, reaped = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    helpers = reaped.ru_utime + reaped.ru_stime
    switches = process.ru_nivcsw + reaped.ru_nivcsw
    waited = waited_seconds(os.getpid())
    for pid in _helpers():
        helper = usage(pid)
        if helper is not None:
            helpers += helper.cpu_seconds + helper.reaped_seconds
            switches += involuntary_switches(pid)
            if waited is not None:
                waited += waited_seconds(pid) or 0.0
    busy, steal = _core_seconds()
    return Conditions(
        cpu_seconds=process.ru_utime + process.ru_stime + helpers,
        helper_cpu_seconds=helpers,
        waited_seconds=waited,
        busy_seconds=busy,
        steal_seconds=steal,
        pressure_seconds=_pressure_seconds(),
        involuntary_switches=switches,
        minor_faults=process.ru_minflt,
        load=os.getloadavg()[0],
    )


def window_between(
    before: Conditions, after: Conditions, start_s: float, seconds: float, steps: int, samples: int
) -> Window:
    """Returns the window between two moments."""
    cpu_seconds = after.cpu_seconds - before.cpu_seconds
    return Window(
        start_s=start_s,
        seconds=seconds,
        steps=steps,
        samples=samples,
        cpu_seconds=cpu_seconds,
        helper_cpu_seconds=max(0.0, after.helper_cpu_seconds - before.helper_cpu_seconds),
        # A thread that ends takes its counts with it.
        waited_seconds=_difference(before.waited_seconds, after.waited_seconds),
        foreign_cpu_seconds=max(0.0, after.busy_seconds - before.busy_seconds - cpu_seconds),
        involuntary_switches=max(0, after.involuntary_switches - before.involuntary_switches),
        steal_seconds=after.steal_seconds - before.steal_seconds,
        pressure_seconds=_difference(before.pressure_seconds, after.pressure_seconds),
        minor_faults=after.minor_faults - before.minor_faults,
        load=after.load,
    )


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else max(0.0, after - before)


def _helpers() -> list[int]:
    return [pid for pid in tree(os.getpid()) if pid != os.getpid()]


def _core_seconds() -> tuple[float, float]:
    """Returns busy and stolen seconds of the cores this process may use."""
    cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    busy = steal = 0
    try:
        with open("/proc/stat", encoding="ascii") as file:
            for line in file:
                name, *columns = line.split()
                if name in cores:
                    busy += sum(int(columns[i]) for i in _BUSY)
                    steal += int(columns[_STEAL])
    except (OSError, IndexError, ValueError):
        return 0.0, 0.0
    return busy / _TICKS, steal / _TICKS


def _pressure_seconds() -> float | None:
    try:
        text = Path("/proc/pressure/cpu").read_text(encoding="ascii")
        return int(text.partition("total=")[2].split()[0]) / 1e6
    except (OSError, IndexError, ValueError):
        return None


def canary_ms() -> float:
    """Returns the milliseconds that a fixed piece of work takes: about 20 on a quiet core.

    A hash, because it needs neither the GIL, nor memory beyond the cache, nor torch's threads.
    """
    began = time.perf_counter()
    for _ in range(_CANARY_ROUNDS):
        hashlib.blake2b(_CANARY)
    return 1e3 * (time.perf_counter() - began)


def undisturbed_canary_ms() -> float:
    """Returns `canary_ms`, or 0 if this process's own loader ran at the same time.

    After a window, refilling the queues slows the canary, which is not an outside disturbance.
    """
    before = _helper_seconds()
    canary = canary_ms()
    return canary if _helper_seconds() - before < _HELPER_SHARE * canary / 1e3 else 0.0


def processor_seconds() -> float:
    """Returns the processor seconds so far of this process and its descendants."""
    return time.process_time() + sum(ran_seconds(pid) or 0.0 for pid in _helpers())


def _helper_seconds() -> float:
    """Returns the processor seconds of this tree, without those of this thread."""
    return processor_seconds() - time.thread_time()
