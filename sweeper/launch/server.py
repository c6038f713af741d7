"""Imports torch once, then forks a keeper per job; reads and writes JSON lines.

    {"run": DIR, "isolation": "fork"|"exec"}  ->  {"ended": DIR} when its process tree is gone
    {"cancel": DIR}                           ->  the keeper ends its process tree

A fork takes as long as everything else a keeper does, so the next keeper is forked in advance; it forks the
trial's process and waits for a job. A job has ended once its keeper reports that none of its processes is
left; the keeper then exits.

The server has one thread, runs no tensor operation and must never touch CUDA, so that forking is safe.
When its input ends (the supervisor is gone), it ends all keepers and exits.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from sweeper.core.codec import make_decoders
from sweeper.core.job import Job
from sweeper.core.measurement import Failure, Measurement, Report
from sweeper.system.process import children
from sweeper.worker.keeper import abandon, adopt_orphans, keep
from sweeper.worker.trial_process import TrialProcess, die_with_parent


@dataclass(frozen=True, slots=True)
class SpareKeeper:
    """A keeper without a job, and the descriptor for its request."""

    pid: int
    request: int


class Server:
    """Reads requests from `source` and writes answers to `answers`."""

    def __init__(self, source: int, answers: int) -> None:
        self.source, self.answers = source, answers
        self.keepers: dict[int, str] = {}
        self._leaving: set[int] = set()
        self._spare: SpareKeeper | None = None
        self._partial = b""
        self._wake, self._wake_end = os.pipe()
        self._done, self._done_end = os.pipe()
        for descriptor in (self._wake, self._wake_end, self._done):
            os.set_blocking(descriptor, False)

    def serve(self) -> None:
        """Serves requests until the input ends."""
        # The handler does nothing; the wake-up descriptor makes poll() return.
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threads = len(os.listdir("/proc/self/task"))
        assert threads == 1, f"a process with {threads} threads must not fork"
        self._answer(ready=os.getpid(), threads=threads)
        poller = select.poll()
        poller.register(self.source, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        poller.register(self._done, select.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._done in ready:
                self._hear()
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
                self._reap()
            if self.source in ready:
                data = os.read(self.source, 65536)
                if not data:
                    break
                *lines, self._partial = (self._partial + data).split(b"\n")
                for line in lines:
                    self._take(json.loads(line))
        for pid in self.keepers:
            os.kill(pid, signal.SIGTERM)
        if self._spare is not None:
            os.close(self._spare.request)
        left = self._children()
        while left:
            left.discard(os.waitpid(-1, 0)[0])

    def _answer(self, **message: Any) -> None:
        os.write(self.answers, json.dumps(message).encode() + b"\n")

    def _take(self, request: dict[str, Any]) -> None:
        if "cancel" in request:
            for pid, folder in self.keepers.items():
                if folder == request["cancel"]:
                    os.kill(pid, signal.SIGTERM)
            return
        keeper, self._spare = self._spare or self._fork(), None
        # A spare that was just killed is reaped as the keeper of this job, which is lost.
        with contextlib.suppress(BrokenPipeError):
            os.write(keeper.request, json.dumps(request).encode() + b"\n")
        os.close(keeper.request)
        self.keepers[keeper.pid] = request["run"]
        # If no more processes may start, the next job waits for its fork, and those that run go on.
        with contextlib.suppress(OSError):
            self._spare = self._fork()

    def _fork(self) -> SpareKeeper:
        """Returns a keeper that waits for its job, as does the process of its trial.

        Raises:
            OSError: The user or the control group may have no more processes.
        """
        waiting, request = os.pipe()
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            os.close(waiting)
            os.close(request)
            raise
        if pid == 0:
            os.close(request)
            self._become_keeper(waiting, server)
        os.close(waiting)
        return SpareKeeper(pid, request)

    def _become_keeper(self, waiting: int, server: int) -> NoReturn:
        status = 70
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # When the pipe of answers ends, the process that waits must be gone as well.
            signal.signal(signal.SIGTERM, abandon)
            die_with_parent(signal.SIGTERM, server)
            for descriptor in (self.source, self._wake, self._wake_end, self._done):
                os.close(descriptor)
            # `answers` stays open until the keeper exits: the supervisor reads EOF when all are gone.
            private = (self.answers, self._done_end)
            trial = TrialProcess((waiting, *private))
            with open(waiting, "rb") as requests:
                line = requests.readline()
            if not line:
                trial.end()
            else:
                if trial.has_died():
                    trial.end()
                    trial = TrialProcess(private)
                request = json.loads(line)
                keep(Path(request["run"]), request["isolation"], trial)
                os.write(self._done_end, f"{os.getpid()}\n".encode())
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def _hear(self) -> None:
        """Answers for the keepers whose jobs have ended, and which are about to exit."""
        for pid in map(int, os.read(self._done, 4096).split()):
            folder = self.keepers.pop(pid, None)
            if folder is not None:
                self._leaving.add(pid)
                self._answer(ended=folder)

    def _reap(self) -> None:
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self._spare is not None and pid == self._spare.pid:
                os.close(self._spare.request)
                self._spare = None
            self._leaving.discard(pid)
            folder = self.keepers.pop(pid, None)
            if folder is not None:
                self._end_orphans()
                self._answer(ended=folder)

    def _children(self) -> set[int]:
        """Returns the processes of this server that still have to be reaped, without orphans."""
        return {*self.keepers, *self._leaving, *([self._spare.pid] if self._spare else [])}

    def _end_orphans(self) -> None:
        """Kills the orphans of a killed keeper, which have become this process's children."""
        pids = self._children()
        while orphans := [pid for pid in children(os.getpid()) if pid not in pids]:
            for pid in orphans:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in orphans:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)


def warm() -> None:
    """Imports the modules that trials need."""
    import sweeper.worker.trial  # noqa: F401
    from sweeper.trainer.preload import preload

    preload()
    make_decoders(Job, Measurement, Report, Failure)


def main(warm: Callable[[], None] = warm) -> None:
    """Serves on descriptors 0 and 1; everything printed goes to standard error.

    Args:
        warm: Called before the first trial, to import modules for all trials.
    """
    die_with_parent(signal.SIGTERM, int(sys.argv[-1]))
    adopt_orphans()
    source, answers = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    # The collector would take a sixth of the import time and find nothing.
    gc.disable()
    warm()
    # The objects made so far live forever, so the collector need not touch (and thereby copy) their pages.
    # They are not collected first: freed garbage leaves holes in the heap, which trials would reuse. A
    # training in a fresh interpreter has no such holes and gets its memory from the kernel at each step.
    gc.freeze()
    gc.enable()
    Server(source, answers).serve()


if __name__ == "__main__":
    main()
