"""Reads from /proc which processes are in a tree, and what they have used; limits the time of this one."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MAX_SECONDS = 1e8


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in the main thread once the time is up, whatever it waits for."""

    def ring(number: int, frame: FrameType | None) -> NoReturn:
        raise TimeoutError(f"not done within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    # 0 would mean no alarm, and setitimer() takes a bounded value.
    signal.setitimer(signal.ITIMER_REAL, min(max(seconds, 1e-3), _MAX_SECONDS))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def children(pid: int) -> Iterator[int]:
    """Yields the processes that `pid` has started or adopted, zombies included."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return
    for task in tasks:
        with contextlib.suppress(OSError):
            yield from map(int, (task / "children").read_text(encoding="ascii").split())


def tree(pid: int) -> Iterator[int]:
    """Yields `pid` and its living descendants."""
    yield pid
    for child in children(pid):
        yield from tree(child)


def open_files(pid: int) -> set[str]:
    """Returns the paths of the files that `pid` has open; none if it has exited."""
    paths: set[str] = set()
    with contextlib.suppress(OSError):
        for descriptor in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                paths.add(os.readlink(descriptor.path))
    return paths


@dataclass(frozen=True, slots=True)
class Usage:
    """Processor time and resident memory of a process.

    Attributes:
        reaped_seconds: Processor time of the children it has waited for.
        minor_faults: Pages that the kernel had to map and clear for it.
    """

    cpu_seconds: float
    reaped_seconds: float
    resident_bytes: int
    minor_faults: int = 0


def usage(pid: int) -> Usage | None:
    """Returns the usage of `pid` so far, threads included; None if it has exited."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    user, system, user_reaped, system_reaped = map(int, fields[11:15])
    return Usage(
        (user + system) / _TICKS,
        (user_reaped + system_reaped) / _TICKS,
        int(fields[21]) * _PAGE,
        int(fields[7]),
    )


def proportional_bytes(pid: int) -> int:
    """Returns the memory of `pid` in bytes, of what it shares its part only; 0 if unknown."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            return sum(1024 * int(line.split()[1]) for line in file if line.startswith("Pss:"))
    except OSError:
        return 0


def peak_bytes(pid: int) -> int:
    """Returns the peak resident set of a process, in bytes; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            return next((1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM:")), 0)
    except OSError:
        return 0


def involuntary_switches(pid: int) -> int:
    """Returns how often the kernel took the processor away from the threads of `pid`."""
    texts = (text.rpartition("nonvoluntary_ctxt_switches:")[2] for _, text in _of_threads(pid, "status"))
    return sum(int(text.split()[0]) for text in texts)


def ran_seconds(pid: int) -> float | None:
    """Returns the processor time of `pid`'s living threads, to the nanosecond; None if unknown."""
    return _total(_schedule_seconds(pid, 0))


def waited_seconds(pid: int) -> float | None:
    """Returns how long threads of `pid` were ready to run but had no core; None if unknown."""
    return _total(waits(pid))


def waits(pid: int) -> dict[int, float]:
    """Returns how many seconds each thread of `pid` was ready but had no core; empty if unknown."""
    return _schedule_seconds(pid, 1)


def _total(of_threads: dict[int, float]) -> float | None:
    return sum(of_threads.values()) if of_threads else None


def _schedule_seconds(pid: int, column: int) -> dict[int, float]:
    return {task: int(text.split()[column]) / 1e9 for task, text in _of_threads(pid, "schedstat")}


def _of_threads(pid: int, file: str) -> Iterator[tuple[int, str]]:
    """Yields the living threads of `pid`, and the text of one file of each."""
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                yield int(task.name), (task / file).read_text(encoding="utf-8", errors="replace")


_CHECKOUT = Path(__file__).resolve().parents[2]
"""The folder that contains the package."""


def python_module(name: str, *arguments: str) -> list[str]:
    """Returns the command that runs a module of this very installation of sweeper.

    The current folder is not searched for modules: a project may contain a `queue.py`, or a clone named
    `sweeper`. The exception is a checkout of sweeper that runs from its own folder, installed or not.
    """
    options = ["-m"] if Path.cwd() == _CHECKOUT else ["-P", "-m"]
    return [sys.executable, *options, name, *arguments]
