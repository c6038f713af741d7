"""Finds what tests have left running, and ends it when its pytest process cannot do so itself.

Standard library alone, and a program of its own (`python guard.py RUN PID`, see `main`): it is there
however the pytest process ends.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator

MARK = "SWEEPER_TESTS"
"""The variable that everything which a test starts inherits; its words say who started it.

Trials get it as well: they are given whatever begins with SWEEPER_.
"""
LIMIT_SIGNAL = signal.SIGRTMAX
"""Tells a pytest process that its test has taken longer than it may."""
UNWIND_SECONDS = 10.0
"""What a test has for its own cleaning up, before its processes are killed."""
HARD_SECONDS = 60.0
"""What it has before the pytest process itself is killed."""
EXEC_SECONDS = 1.0
"""What loading a program may take: on a busy core, and from a disk, it takes a while."""
_PF_EXITING, _PF_KTHREAD = 0x4, 0x200000
"""Of <linux/sched.h>."""
# They serve the pytest process as long as it lives, and end with it.
_HELPERS = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver", b"_inductor/compile_worker")


def words_of(pid: int) -> list[str]:
    """Returns the words of the mark that a process was started with; none where it may not be read."""
    deadline = time.monotonic() + EXEC_SECONDS
    found = _read(pid, "environ")
    if not found:
        while _is_in_exec(pid) and time.monotonic() < deadline:
            time.sleep(0.001)
        # What was being loaded is there now; what has no environment still has none.
        found = _read(pid, "environ")
    prefix = MARK.encode() + b"="
    variables = found.split(b"\0")
    return next(
        (os.fsdecode(each[len(prefix) :]).split() for each in variables if each.startswith(prefix)), []
    )


def _is_in_exec(pid: int) -> bool:
    """Whether a process is being loaded: for that time it has neither arguments nor an environment."""
    stat = _stat(pid)
    return bool(stat) and not int(stat[6]) & (_PF_KTHREAD | _PF_EXITING) and not command_of(pid)


def pids() -> set[int]:
    """Returns the processes of this machine."""
    return {int(name) for name in os.listdir("/proc") if name.isdecimal()}


def living(found: Callable[[int], bool], but: Iterable[int] = ()) -> list[int]:
    """Returns the processes for which `found` holds, without zombies, helpers and this process itself.

    Args:
        but: Processes that are not looked at.
    """
    seen, held = {os.getpid(), *but}, list[int]()
    # One that is looked at may have ended by then, and left a child that was not listed yet.
    while new := pids() - seen:
        seen |= new
        held += [pid for pid in sorted(new) if found(pid) and _lives(pid) and not is_helper(pid)]
    return held


def is_helper(pid: int) -> bool:
    """Whether a process is one that Python or torch has started for the pytest process itself."""
    words = command_of(pid)
    return any(each in words for each in _HELPERS)


def command_of(pid: int) -> bytes:
    """Returns a process's command line, its words joined by blanks; empty when it is gone."""
    return _read(pid, "cmdline").replace(b"\0", b" ").strip()


def _read(pid: int, name: str) -> bytes:
    """Returns a file of a process; nothing when it is gone, or may not be read."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def described(found: list[int]) -> str:
    """Returns a line for each process."""
    return "\n".join(f"  {pid} {command_of(pid)[:300].decode(errors='replace')}" for pid in found)


def parents(pid: int) -> Iterator[int]:
    """Yields a process's parent, its parent's parent and so on."""
    while (stat := _stat(pid)) and (pid := int(stat[1])):
        yield pid


def gone(find: Callable[[], list[int]], seconds: float) -> list[int]:
    """Waits so long for what `find` returns to end by itself; returns what has not."""
    deadline = time.monotonic() + seconds
    while (found := find()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def kill(find: Callable[[], list[int]]) -> None:
    """Kills what `find` returns until it returns nothing: what is killed may have started more.

    What cannot be killed (another user's, or waiting for a disk) is left after a while.
    """
    deadline = time.monotonic() + 10
    while (found := find()) and time.monotonic() < deadline:
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(0.01)


def _lives(pid: int) -> bool:
    stat = _stat(pid)
    return bool(stat) and stat[0] not in "ZX"


def _stat(pid: int) -> list[str]:
    """Returns the fields of /proc/PID/stat from the state on; the name before it may hold anything."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def main(word: str, pid: int) -> None:
    """Reads from the pytest process `pid` how many seconds its test may take, and an empty line after it.

    When its input ends without an `end`, however that came about, everything is killed whose mark begins
    with `word`.
    """

    def mine() -> list[int]:
        return living(lambda each: any(name.startswith(word) for name in words_of(each)))

    steps = (lambda: os.kill(pid, LIMIT_SIGNAL), lambda: kill(mine), lambda: os.kill(pid, signal.SIGKILL))
    lines = _Lines()
    while (line := lines.next(None)) is not None:
        if line == "end\n":
            return
        waits = (float(line), UNWIND_SECONDS, HARD_SECONDS) if line.strip() else ()
        for step, seconds in zip(steps, waits, strict=False):
            if lines.next(seconds) != "":
                break
            step()
    kill(mine)


class _Lines:
    """The lines of this process's input."""

    def __init__(self) -> None:
        self._text = b""

    def next(self, seconds: float | None) -> str | None:
        """Returns the next line, an empty text when none comes in time, None at the end."""
        while b"\n" not in self._text:
            if not select.select([0], [], [], seconds)[0]:
                return ""
            if not (more := os.read(0, 4096)):
                return None
            self._text += more
        line, _, self._text = self._text.partition(b"\n")
        return line.decode() + "\n"


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
