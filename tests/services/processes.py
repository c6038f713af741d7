"""What services share: free ports, daemons that end with the test process, and bounded waits."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from sweeper.core.job import LOG
from sweeper.launch.local import LocalLauncher, leftovers
from sweeper.system.process import children, tree


class UnavailableError(Exception):
    """A service cannot run on this machine; the message says why."""


def free_ports(count: int) -> list[int]:
    """Returns different ports on which nothing listens."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def daemon(
    command: Sequence[object], log: Path, env: Mapping[str, str], user: str | None = None
) -> subprocess.Popen[bytes]:
    """Starts a program in a session of its own, which the kernel kills when this process ends.

    Args:
        log: What the program prints is added to it.
        user: Whom it runs as; this process's own user by default.
    """
    identity = [] if user is None else [f"--reuid={user}", f"--regid={user}", "--init-groups"]
    words = ["setpriv", "--pdeathsig=KILL", *identity, "--", *map(str, command)]
    with open(log, "ab") as file:
        return subprocess.Popen(
            words, env=dict(env), stdout=file, stderr=file, cwd=log.parent, start_new_session=True
        )


def wait_for(check: Callable[[], object], seconds: float, what: Callable[[], str]) -> None:
    """Returns once `check` holds.

    Raises:
        TimeoutError: It did not in time; `what` tells what happened instead.
    """
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s:\n{what()}")
        time.sleep(0.05)


def tail(log: Path, characters: int = 3000) -> str:
    """Returns the end of a log, with its name."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else "(none)"
    return f"--- {log.name}\n{text[-characters:]}"


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kills a daemon and all that descends from it; returns when they are gone."""
    try:
        tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        tree = []
    _kill(tree)
    process.wait()


def kill_marked(marker: str, having: str | None = None) -> None:
    """Kills what `marked` returns, until it returns nothing."""
    while found := marked(marker, having):
        _kill(found)


def marked(marker: str, having: str | None = None) -> list[psutil.Process]:
    """Returns the living processes whose environment at their start had `marker`, such as `NAME=value`.

    Args:
        having: A variable that it must have had as well, whatever its value.
    """
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            names = {each.partition(b"=")[0] for each in variables}
            if os.fsencode(marker) in variables and (having is None or os.fsencode(having) in names):
                found.append(psutil.Process(pid))
    return found


def _kill(processes: Sequence[psutil.Process]) -> None:
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    wait_for(lambda: not list(filter(_lives, processes)), 10, lambda: str(list(filter(_lives, processes))))


def _lives(process: psutil.Process) -> bool:
    # Orphans are zombies until init has a look at them, which may take a second.
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def idle_keepers(launcher: LocalLauncher) -> list[int]:
    """Returns the keepers without a job: the one that waits for the next job, and those that exit."""
    return [pid for pid in children(launcher.pid) if not _has_log(pid)]


def _has_log(keeper: int) -> bool:
    with contextlib.suppress(OSError):
        links = [os.readlink(each) for each in Path(f"/proc/{keeper}/fd").iterdir()]
        return any(each.endswith(f"/{LOG}") for each in links)
    return False


def busy(launcher: LocalLauncher, pids: Iterable[int]) -> list[int]:
    """Returns those of `pids` that are not idle keepers or below them."""
    found = {*pids}
    idle = [pid for keeper in idle_keepers(launcher) for pid in tree(keeper)]
    return sorted(found - {*idle})


def await_idle(launcher: LocalLauncher, home: Path, seconds: float = 5.0) -> None:
    """Returns once a launcher has no other processes than its server and idle keepers.

    Raises:
        TimeoutError: A trial has left a process behind.
    """

    def left() -> list[int]:
        return [pid for pid in busy(launcher, leftovers(home)) if pid != launcher.pid]

    wait_for(lambda: not left(), seconds, lambda: f"left behind: {left()}")
