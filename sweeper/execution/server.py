"""Imports torch once, then forks a keeper per job; reads and writes JSON lines.

    {"run": DIR, "isolation": "fork"|"exec"}  ->  {"ended": DIR} when its keeper has exited
    {"cancel": DIR}                           ->  the keeper ends its process tree

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
from pathlib import Path
from typing import Any, NoReturn

from sweeper.system.process import children
from sweeper.telemetry.probes import look_for_probes
from sweeper.worker.keeper import (
    Start,
    adopt_orphans,
    die_with_parent,
    in_fresh_interpreter,
    in_this_interpreter,
    keep,
)

_START: dict[str, Start] = {
    "fork": in_this_interpreter,
    "exec": in_fresh_interpreter,
}


class Server:
    """Reads requests from `source` and writes answers to `answers`."""

    def __init__(self, source: int, answers: int) -> None:
        self.source, self.answers = source, answers
        self.keepers: dict[int, str] = {}
        self._partial = b""
        self._wake, self._wake_end = os.pipe()
        for descriptor in (self._wake, self._wake_end):
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
        while True:
            ready = dict(poller.poll())
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
        while self.keepers:
            pid, _ = os.waitpid(-1, 0)
            self.keepers.pop(pid, None)

    def _answer(self, **message: Any) -> None:
        os.write(self.answers, json.dumps(message).encode() + b"\n")

    def _take(self, request: dict[str, Any]) -> None:
        if "cancel" in request:
            for pid, folder in self.keepers.items():
                if folder == request["cancel"]:
                    os.kill(pid, signal.SIGTERM)
            return
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_keeper(Path(request["run"]), _START[request["isolation"]], server)
        self.keepers[pid] = request["run"]

    def _become_keeper(self, folder: Path, start: Start, server: int) -> NoReturn:
        status = 70
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            die_with_parent(signal.SIGTERM, server)
            for descriptor in (self.source, self._wake, self._wake_end):
                os.close(descriptor)
            # `answers` stays open until the keeper exits: the supervisor reads EOF when all are gone.
            keep(folder, start, (self.answers,))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def _reap(self) -> None:
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            folder = self.keepers.pop(pid, None)
            if folder is not None:
                self._end_orphans()
                self._answer(ended=folder)

    def _end_orphans(self) -> None:
        """Kills the orphans of a killed keeper, which have become this process's children."""
        while orphans := [pid for pid in children(os.getpid()) if pid not in self.keepers]:
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
    look_for_probes()
    # The objects made so far live forever: the collector need not touch (and so copy) their pages.
    gc.collect()
    gc.freeze()
    gc.enable()
    Server(source, answers).serve()


if __name__ == "__main__":
    main()
