"""Dumps the stacks of a process tree before it is killed, into its log.

Python's faulthandler writes them in a signal's own handler: neither a held GIL nor a blocked main thread is
in its way. Whoever has no such handler dies of the signal, a moment before it is killed.
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

VARIABLE = "PYTHONFAULTHANDLER"
"""Has a Python that is started anew write its stacks, too."""

WAIT_SECONDS, SHARE_SECONDS = 2.0, 0.5
"""For all processes together, and for one of them."""
_LISTEN_SECONDS = 0.01
_MOST = 64


def enable() -> None:
    """Has this process, and all that are forked from it, write the stacks of its threads when told to."""
    faulthandler.enable(all_threads=True)
    os.environ.setdefault(VARIABLE, "1")


def save(root: int, listen: Callable[[float], None], write: Callable[[bytes], None]) -> None:
    """Has the processes below `root`, and it, write their stacks, one after the other; they die of it.

    They are stopped first: what happens to one must not move another from where it was.

    Args:
        listen: Takes in what they write, for so many seconds.
        write: Takes a line that says whose stacks follow.
    """
    found = list(tree(root))[:_MOST]
    states = {pid: _state(pid) for pid in found}
    for pid in found:
        _send(pid, signal.SIGSTOP)
    deadline = time.monotonic() + WAIT_SECONDS
    # Children first: one whose parent has ended may be told to end as well.
    for pid in reversed(found):
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
    """Returns the state letter of `pid`, `X` where it has gone."""
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
    """Keeps a process from leaving a core file, which is many GiB where there is a GPU.

    A limit of one byte also keeps the kernel from piping it to a program (core(5)).
    """
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_CORE)
        least = 1 if hard == resource.RLIM_INFINITY else min(1, hard)
        resource.prlimit(pid, resource.RLIMIT_CORE, (least, hard))
