"""Forks a trial's process before its job is known; the job arrives through a socket.

    keeper ──fork──► waits ──job and locks──► trial
                       └──socket──► stage, device, windows, result; and back: what disturbed a window
                       └──pipe──► output

A fork takes as long as everything else that a keeper does, so it is done in advance.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import socket
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from sweeper.core.job import Job, read_job
from sweeper.system.process import python_module
from sweeper.worker.step_counter import SharedSteps, make_counter

_PR_SET_PDEATHSIG = 1
_MAX_MESSAGE, _MAX_LOCKS = 65536, 253
"""Bytes and descriptors that the kernel passes in one message."""
_LIBC = ctypes.CDLL(None, use_errno=True)


class TrialProcess:
    """A process that waits for its job, and then becomes the trial. It dies with its parent, the keeper.

    Attributes:
        steps: Its step counter.
        output: Descriptor of its printed output.
    """

    def __init__(self, private: Sequence[int] = ()) -> None:
        """Forks.

        Args:
            private: The keeper's descriptors that the trial must not inherit.
        """
        self._socket, channel = socket.socketpair()
        self.output, printed = os.pipe()
        counter = make_counter()
        self.steps = SharedSteps(counter)
        keeper = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self._wait(channel, printed, counter, private, keeper)
        channel.close()
        os.close(printed)
        os.close(counter)
        for descriptor in (self.reports, self.output):
            os.set_blocking(descriptor, False)

    @property
    def reports(self) -> int:
        """Descriptor of its reports, line by line, and of the answers to them."""
        return self._socket.fileno()

    def begin(self, folder: Path, isolation: str, held: Sequence[int]) -> None:
        """Makes it the trial of the job in `folder`.

        Args:
            isolation: A key of `STARTS`.
            held: Descriptors of locks, which it then holds as well.
        """
        message = json.dumps({"run": str(folder), "isolation": isolation}).encode()
        # It may have been killed.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._socket, [message], held)

    def has_died(self) -> bool:
        """Returns whether it has died while it waited."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def end(self) -> None:
        """Kills the process, if there is no job for it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.close()

    def close(self) -> None:
        """Closes this side of its channels."""
        self.steps.close()
        self._socket.close()
        os.close(self.output)

    def _wait(
        self, channel: socket.socket, printed: int, counter: int, private: Sequence[int], keeper: int
    ) -> NoReturn:
        try:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            die_with_parent(signal.SIGKILL, keeper)
            self.close()
            for descriptor in private:
                os.close(descriptor)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.dup2(printed, 1)
            os.dup2(printed, 2)
            os.close(nothing)
            os.close(printed)
            raise_open_files()
            message, held, _, _ = socket.recv_fds(channel, _MAX_MESSAGE, _MAX_LOCKS)
            if not message:
                os._exit(0)
            for descriptor in held:
                # The trial may be another program (`isolation: exec`).
                os.set_inheritable(descriptor, True)
            request = json.loads(message)
            folder = Path(request["run"])
            job = read_job(folder)
            os.environ.update(job.env)
            with contextlib.suppress(OSError):
                Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")
            if job.cpus:
                os.sched_setaffinity(0, job.cpus)
            STARTS[request["isolation"]](folder, job, channel.detach(), counter)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(70)


def _run_here(folder: Path, job: Job, descriptor: int, steps: int) -> NoReturn:
    from sweeper.worker.trial import main

    main(job, descriptor, steps)


def _exec_interpreter(folder: Path, job: Job, descriptor: int, steps: int) -> NoReturn:
    for fd in (descriptor, steps):
        os.set_inheritable(fd, True)
    command = python_module("sweeper.worker.trial", str(folder), str(descriptor), str(steps))
    os.execv(command[0], command)


STARTS: dict[str, Callable[[Path, Job, int, int], NoReturn]] = {
    "fork": _run_here,
    "exec": _exec_interpreter,
}
"""For each isolation, what the process becomes: `(folder, job, report descriptor, counter's descriptor)`.
With `fork`, it has its parent's imports; with `exec`, it is a new interpreter."""


def die_with_parent(number: int, parent: int) -> None:
    """Asks the kernel to send this process the signal `number` when its parent dies."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def raise_open_files() -> None:
    """Raises the limit of open files to its maximum: loader workers pass batches as descriptors."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
