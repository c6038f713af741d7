"""Runs a script's process, reads its output, and stops it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from sweeper.core.progress import TrialFailedError
from sweeper.errors import UserError
from sweeper.script.inside.step_request import GO_ON, REQUEST_VARIABLE, REST, TAKE_APART
from sweeper.script.run.output import Listener
from sweeper.script.run.sandbox import Sandbox
from sweeper.system.process import tree
from sweeper.worker import stacks

POLL_SECONDS = 0.01
GRACE_SECONDS = 5.0
"""Seconds between one signal and the next."""
REST_SECONDS, REST_GAPS = 2.0, 3.0
"""Longest time until a training that is asked to rest does so: in seconds, and in usual gaps of reports."""
PIECE = 65536
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


class StepRequest:
    """Asks a training for something after a step, by a file of one byte that it maps.

    `script.inside.step_request` has the values of the byte.
    """

    def __init__(self, path: Path) -> None:
        """Makes the file; nothing is asked for yet."""
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.go_on()

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variable by which the script's processes find the file."""
        return {REQUEST_VARIABLE: str(self._path)}

    def rest(self) -> None:
        """Asks the training to rest."""
        self._write(REST)

    def take_apart(self) -> None:
        """Asks it to take the steps apart that follow."""
        self._write(TAKE_APART)

    def go_on(self) -> None:
        """Lets it go on."""
        self._write(GO_ON)

    def _write(self, value: int) -> None:
        os.pwrite(self._descriptor, bytes([value]), 0)

    def close(self) -> None:
        """Removes the file."""
        os.close(self._descriptor)
        self._path.unlink(missing_ok=True)


class ScriptProcess:
    """Runs a command line and feeds its output to `listener`.

    Attributes:
        pid: Id of the process that was started, and of its group.
        started_s: Monotonic clock at its start.
        status: Wait status from os.waitpid; None while it runs.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        sandbox: Sandbox,
        environment: Mapping[str, str],
        listener: Listener,
        request: StepRequest,
    ) -> None:
        self._listener, self._sandbox, self._request = listener, sandbox, request
        self._num_refused, self._is_stopping = 0, False
        self.started_s = time.perf_counter()
        try:
            self._process = sandbox.start(
                arguments,
                environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise UserError(
                f"`command` must start with a program that can be run, but got {arguments[0]!r}"
                f" ({error.strerror}). Give its path, or install it."
            ) from None
        self.pid = self._process.pid
        self.status: int | None = None
        self._pidfd = os.pidfd_open(self._process.pid)
        self._poller = select.poll()
        self._poller.register(self._pidfd, select.POLLIN)
        self._poller.register(listener.socket, select.POLLIN)
        self._streams: list[int] = []
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._poller.register(stream.fileno(), select.POLLIN)
            self._streams.append(stream.fileno())

    def listen(self, seconds: float) -> bool:
        """Reads output for up to `seconds`; returns False once the script has exited.

        Raises:
            BeginAgainError: The script needs another mirror.
        """
        if self.status is not None:
            return False
        for descriptor, _ in self._poller.poll(1e3 * max(0.0, seconds)):
            if descriptor in self._streams:
                self._read(descriptor)
            elif descriptor == self._pidfd:
                self._reap()
        self._listener.listen()
        if self._sandbox.num_refused > self._num_refused and not self._is_stopping:
            self._num_refused = self._sandbox.num_refused
            self._sandbox.check()
        return self.status is None

    def _read(self, descriptor: int) -> bool:
        """Reads one piece and passes it to the log; returns whether there may be more."""
        moment = time.perf_counter()
        try:
            data = os.read(descriptor, PIECE)
        except BlockingIOError:
            return False
        if not data:
            self._poller.unregister(descriptor)
            self._streams.remove(descriptor)
        _pass_on(data)
        self._listener.read_output(descriptor, data, moment)
        return bool(data)

    def _reap(self) -> None:
        _, status = os.waitpid(self._process.pid, 0)
        self.status, self._process.returncode = status, os.waitstatus_to_exitcode(status)
        # A child of the script may hold the other end open: only available output is read.
        for descriptor in list(self._streams):
            for _ in range(256):
                if not self._read(descriptor):
                    break

    def pause(self) -> bool:
        """Pauses the script's processes, between two steps of its training if it is watched.

        One that does not rest in time, as in an evaluation, is stopped where it is.

        Returns:
            Whether no step was interrupted.
        """
        is_between_steps = self._is_at_rest()
        # Parents first, so that they cannot start others meanwhile.
        for pid in tree(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        return is_between_steps

    def take_apart(self) -> None:
        """Asks the training to take the steps apart that follow."""
        self._request.take_apart()

    def _is_at_rest(self) -> bool:
        """Asks the training to rest; returns whether it does so in time."""
        watched = self._listener.watched
        if watched.is_pausing or watched.failures:
            return False
        trainers = {pid for pid in watched.trainers if os.path.exists(f"/proc/{pid}")}
        watched.resting.clear()
        self._request.rest()
        deadline = time.perf_counter() + max(REST_SECONDS, REST_GAPS * watched.timeline.usual_gap())
        while trainers and not trainers <= watched.resting:
            if time.perf_counter() > deadline or not self.listen(POLL_SECONDS):
                return False
        return bool(trainers)

    def resume(self) -> None:
        """Resumes the script's processes."""
        self._request.go_on()
        for pid in reversed(list(tree(self.pid))):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def save_stacks(self) -> None:
        """Makes the script and its Python children write their stacks, which kills them."""

        def listen(seconds: float) -> None:
            # Its output no longer matters.
            with contextlib.suppress(TrialFailedError):
                self.listen(seconds)

        stacks.save(self._process.pid, listen, _pass_on)

    def stop(self) -> None:
        """Stops the script and its children with ever stronger signals; returns once it exits."""
        self._is_stopping = True
        self._request.go_on()
        for number in SIGNALS:
            if self.status is not None:
                return
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            deadline = time.perf_counter() + GRACE_SECONDS
            while (left := deadline - time.perf_counter()) > 0:
                # Its output no longer matters.
                with contextlib.suppress(TrialFailedError):
                    if not self.listen(left):
                        return

    def close(self) -> None:
        """Closes the open files; the process has exited."""
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        os.close(self._pidfd)


def _pass_on(data: bytes) -> None:
    """Writes to the trial's output, and so to its log."""
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), data)
