"""A pool for tests whose workers are there when the test says so, and answer when it says so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from sweeper.core.job import Job, write_outcome
from sweeper.core.measurement import Outcome, Report
from sweeper.launch import node
from sweeper.launch.parcel import Parcel, pack_folder
from sweeper.launch.pool import WorkerDescription, WorkerLostError


class ScriptedPool:
    """Workers by name. What runs on them ends with `finish`; what is called there is counted."""

    def __init__(self, *, owned: bool = True) -> None:
        self.there: dict[str, WorkerDescription] = {}
        self.running: dict[str, tuple[Parcel, Future[bytes]]] = {}
        self.wanted = -1
        self.retired: list[str] = []
        self.cancelled: list[tuple[str, str, int]] = []
        self.left: list[str] = []
        self.relieved: list[tuple[Any, ...]] = []
        self.closed = 0
        self.deaf, self.hanging = set[str](), set[str]()
        self.problem: Exception | None = None
        self.numbers: list[str] = []
        self._owned, self.stays = owned, not owned
        self._lock = threading.Lock()

    # -- what the test says -----------------------------------------------------------------------

    def come(self, name: str, **about: Any) -> None:
        self.there[name] = WorkerDescription(**{"host": f"host-{name}", "model": "A10", **about})

    def vanish(self, name: str) -> None:
        """The worker is gone; its engine has not noticed what that means for its task."""
        del self.there[name]

    def job_on(self, name: str) -> Job | None:
        return self.running[name][0].job if name in self.running else None

    def finish(self, name: str, outcome: Outcome | Report, folder: Path) -> None:
        """Sends what a worker that ended like that would."""
        folder.mkdir()
        write_outcome(folder, outcome)
        self.answer(name, pack_folder(folder))

    def answer(self, name: str, data: bytes) -> None:
        self.running.pop(name)[1].set_result(data)

    # -- the pool ---------------------------------------------------------------------------------

    def want(self, count: int) -> None:
        if self.problem is not None:
            raise self.problem
        self.wanted = count

    def workers(self) -> Sequence[str]:
        return list(self.there)

    def run(self, worker: str, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        if worker not in self.there:
            raise WorkerLostError(worker)
        assert worker not in self.running, f"{worker} runs two jobs at once"
        future: Future[bytes] = Future()
        self.running[worker] = (Parcel.from_bytes(*arguments), future)
        return future

    def call(
        self, workers: Sequence[str], function: Callable[..., Any], *arguments: Any
    ) -> Mapping[str, Any]:
        assert self._lock.acquire(blocking=False), "calls come from two threads at once"
        try:
            if function is node.describe_worker:
                return {name: self.there[name] for name in workers if name not in self.deaf}
            if function is node.cancel:
                self.cancelled += [(name, *each) for name in workers for each in arguments[1]]
            if function is node.relieve:
                self.relieved += [(name, *arguments) for name in workers]
            if function is node.leave:
                self.left += workers
            return dict.fromkeys(workers)
        finally:
            self._lock.release()

    def retire(self, worker: str) -> bool:
        assert worker not in {*self.running} - self.hanging, f"{worker} runs a job"
        self.retired.append(worker)
        if self._owned:
            self.there.pop(worker, None)
        return self._owned

    def jobs(self) -> Sequence[str]:
        return self.numbers

    def close(self) -> None:
        self.closed += 1
