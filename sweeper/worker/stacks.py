"""Dumps the stacks of a process tree before it is killed, into its log.

Python's faulthandler writes them from a signal handler: neither a held GIL nor a blocked main
thread can stop it. A process without faulthandler dies from the signal, which is no loss: it would be
killed anyway.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import signal
import time
from collections.abc import Callable

from sweeper.system.process import tree

FAULT_HANDLER_VARIABLE = "PYTHONFAULTHANDLER"
"""Makes newly started Python processes write their stacks, too."""

WAIT_SECONDS, SHARE_SECONDS = 2.0, 0.5
"""Maximum seconds for all processes together, and for each one."""
_LISTEN_SECONDS = 0.01
_MAX_PROCESSES = 64


def enable() -> None:
    """Makes this process and its forks write the stacks of all threads on a fatal signal."""
    faulthandler.enable(all_threads=True)
    os.environ.setdefault(FAULT_HANDLER_VARIABLE, "1")


def save(root: int, listen: Callable[[float], None], write: Callable[[bytes], None]) -> None:
    """Makes `root` and its descendants write their stacks one after the other, which kills them.

    All are stopped first, so that the others do not run on when one dies.

    Args:
        listen: Reads their output for the given seconds.
        write: Takes a header line that names the process.
    """
    pids = list(tree(root))[:_MAX_PROCESSES]
    states = {pid: _state(pid) for pid in pids}
    for pid in pids:
        _send(pid, signal.SIGSTOP)
    deadline = time.monotonic() + WAIT_SECONDS
    # Children first: the death of a parent may kill its children before they have written anything.
    for pid in reversed(pids):
        if states[pid] in "ZX":
            continue
        _leave_no_core(pid)
        stopped = ", which was stopped" if states[pid] == "T" else ""
        write(f"\n--- stacks of process {pid} ({_command(pid)}){stopped} ---\n".encode())
        _send(pid, signal.SIGABRT)
        _send(pid, signal.SIGCONT)
        until = min(deadline, time.monotonic() + SHARE_SECONDS)
        while _state(pid) not in "ZX" and time.monotonic() < until:
            listen(_LISTEN_SECONDS)
        listen(0.0)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _state(pid: int) -> str:
    """Returns the state letter of `pid`, or `X` if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(200).split(b"\0")
    except OSError:
        return "?"
    return " ".join(word.decode("utf-8", "backslashreplace") for word in words).strip()


def _leave_no_core(pid: int) -> None:
    """Prevents a core file, which takes many GiB with a GPU.

    A limit of one byte also keeps the kernel from piping it to a program (core(5)).
    """
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_CORE)
        soft = 1 if hard == resource.RLIM_INFINITY else min(1, hard)
        resource.prlimit(pid, resource.RLIMIT_CORE, (soft, hard))
