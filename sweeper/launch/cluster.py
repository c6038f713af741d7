"""Launches jobs on a cluster: sends them as parcels to the workers of a pool, one job per worker.

A lost worker is a lost attempt, and only the supervisor runs a trial again: the engine's own retries are off.
The engine is asked for workers alone. A trial in its queue could not be told from one that runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from sweeper.core.job import RACE_STAGE, SEARCH_STAGE, read_job
from sweeper.core.launchers import traits
from sweeper.core.measurement import Failure, FailureKind, Outcome, Report
from sweeper.core.place import TrialPlace, write_place
from sweeper.errors import EnvironmentStopError, SweeperError
from sweeper.launch import node
from sweeper.launch.launcher import Launcher, LaunchRequest, outcome_or_lost
from sweeper.launch.parcel import Parcel, unpack_into
from sweeper.launch.pool import Pool, WorkerDescription, WorkerLostError
from sweeper.launch.workers import ConnectedWorker, RemoteHandle, required_seconds, worker_place
from sweeper.system.files import read_json, write_json

JOBS = "jobs.json"
"""File in the sweep's folder that lists its jobs while it runs, for the next supervisor if this one dies."""
MODELS = "models.json"
"""File in the sweep's folder that lists the device models of workers that the sweep does not use."""
_ANOTHER = (
    "results are comparable only within one model. Request one (`execution.job.constraint`), or give each"
    " a separate sweep (`same_gpu: false`)"
)
LOOK_SECONDS = 0.2
"""Seconds between two looks at the pool."""
WAITING_SECONDS = 5.0
"""Seconds without a worker after which the user is informed."""
LEAVE_SECONDS = 5.0
"""Seconds that `close` waits for the thread that looks."""
MAX_SAID = 200
"""Characters of a worker's error in a message."""
MAX_REFUSALS = 3
"""Number of workers in a row that may refuse trials before a sweep without any other worker stops."""
MAX_WORKERS = 1000
"""Maximum number of workers on a cluster of unknown size."""

Later = list[Callable[[], object]]
"""Calls to make after the lock is released, since they run other code's callbacks."""


def on_workers(request: LaunchRequest, make_pool: Callable[[], Pool]) -> RemoteLauncher:
    """Returns a launcher that runs the sweep's jobs on the workers of a pool.

    Args:
        make_pool: Starts or joins the workers.
    """
    chosen = request.execution
    wanted = chosen.at_once(request.gpus) or MAX_WORKERS
    template = request.parcel()
    return RemoteLauncher(
        make_pool(),
        template,
        max_workers=min(wanted, request.max_jobs or wanted),
        needs_gpu=traits(chosen.launcher).is_batch and chosen.gpus != 0,
        on_cpu=chosen.gpus == 0,
        model=request.model,
        same_gpu=chosen.same_gpu,
        folder=request.folder,
        say=request.say,
    )


def jobs_of(folder: Path) -> Mapping[str, Any]:
    """Returns the last recorded jobs and workers of the sweep in `folder`; empty if none."""
    with contextlib.suppress(OSError, ValueError):
        value = read_json(folder / JOBS)
        if isinstance(value, dict):
            return value
    return {}


class RemoteLauncher(Launcher):
    """Places jobs on the workers of a pool.

    Workers come and go: a job whose worker is gone is lost, and a job without a worker waits.
    A trial starts only on a worker with enough time left to finish it.
    Every 0.2 s, a thread asks for workers, refreshes their list, sends cancellations, and writes the file of
    jobs.

    Attributes:
        model: The sweep's device model, as workers name it; empty before the first worker.
    """

    model = ""

    def __init__(
        self,
        pool: Pool,
        template: Parcel,
        *,
        max_workers: int,
        needs_gpu: bool,
        on_cpu: bool = False,
        model: str = "",
        same_gpu: bool = True,
        folder: Path | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Starts the workers.

        Args:
            template: The common part of all jobs' parcels.
            max_workers: Maximum number of concurrent workers.
            needs_gpu: Whether each worker must have its own GPU.
            on_cpu: Whether trials run on the CPU, so that GPUs are ignored.
            model: The only device model to use; by default that of the first worker.
            same_gpu: Whether the user wants results for one model only; otherwise the models of unused
                workers are recorded, for separate sweeps.
            folder: The sweep's folder, for the lists of jobs and models; by default none is written.
            say: Called with each line for the user.
        """
        self._pool, self._template = pool, template
        self._max_workers, self._wanted = max_workers, max_workers
        self._needs_gpu, self._on_cpu = needs_gpu, on_cpu
        self._same_gpu, self._models = same_gpu, list[str]()
        self._max_refusals = min(max_workers, MAX_REFUSALS)
        self.model, self._folder, self._say = model, folder, say
        self._workers: dict[str, ConnectedWorker] = {}
        self._queue: list[RemoteHandle] = []
        self._last_worker, self._required_seconds, self._refusals = "", 0.0, 0
        self._written: Any = None
        self._broken: SweeperError | None = None
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="workers", daemon=True)
        self._watcher.start()

    @property
    def capacity(self) -> int:
        """The number of jobs that can run now: one for each worker that is busy or has time for a trial."""
        with self._lock:
            if self._broken is not None:
                raise self._broken
            usable = sum(
                worker.handle is not None or self._may_take(worker, self._required_seconds)
                for worker in self.workers
            )
            return min(self._wanted, usable)

    @property
    def workers(self) -> list[ConnectedWorker]:
        """The present workers."""
        return list(self._workers.values())

    def submit(self, folder: Path) -> RemoteHandle:
        """Starts the job in `folder` as soon as there is a worker for it."""
        handle = RemoteHandle(self, folder, read_job(folder))
        with self._locked() as later:
            if self._broken is not None:
                raise self._broken
            # Confirmation runs one job at a time and releases the other workers.
            self._wanted = 1 if handle.job.stage == RACE_STAGE else self._max_workers
            self._required_seconds = required_seconds(handle.job)
            self._queue.append(handle)
            self._dispatch(later)
        return handle

    def cancel_job(self, handle: RemoteHandle) -> None:
        """Cancels a job, whether it waits or runs."""
        with self._locked() as later:
            if handle in self._queue:
                self._queue.remove(handle)
                later.append(
                    partial(
                        handle.set_result, _lost_failure("it was cancelled before a worker was available")
                    )
                )
            else:
                handle.is_ending = True

    def close(self) -> None:
        """Ends every job and the workers that were started for them."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._watcher.join(timeout=LEAVE_SECONDS)
        if self._pool.stays:
            with contextlib.suppress(Exception):
                self._pool.call(list(self._workers), node.leave, self._template.sweep)
        self._pool.close()
        with self._locked() as later:
            later += [
                partial(handle.set_result, _lost_failure("the launcher was closed"))
                for handle in self._give_up()
            ]
        if self._folder is not None:
            (self._folder / JOBS).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[Later]:
        """Holds the lock; yields a list of calls to make after its release, even after an error.

        A job's callback may submit the next job, or wait for a thread that needs the lock.
        """
        later: Later = []
        try:
            with self._lock:
                yield later
        finally:
            for call in later:
                call()

    # -- workers ----------------------------------------------------------------------------------

    def _watch(self) -> None:
        without_since: float | None = time.monotonic()
        while not self._closing.wait(LOOK_SECONDS):
            try:
                self._pool.want(self._wanted)
                self._refresh_workers()
                self._send_cancellations()
                self._write_jobs_file()
                if any(not worker.refusal for worker in self.workers):
                    without_since = None
                elif without_since is None:
                    without_since = time.monotonic()
                elif time.monotonic() - without_since > WAITING_SECONDS:
                    without_since = float("inf")
                    jobs = ", ".join(self._pool.jobs())
                    self._say(f"Waiting for workers{f' (jobs {jobs})' if jobs else ''}.")
            except Exception as error:
                if not self._closing.is_set():
                    self._fail_all_jobs(error)
                return

    def _fail_all_jobs(self, error: Exception) -> None:
        """Fails all jobs, since nothing can be placed any more."""
        if not isinstance(error, SweeperError):
            error = EnvironmentStopError(
                f"the cluster can no longer be used ({type(error).__name__}: {error}). Finished trials are"
                " kept; run the same command to continue."
            )
        with self._locked() as later:
            self._broken = error
            later += [partial(handle.set_exception, error) for handle in self._give_up()]

    def _give_up(self) -> list[RemoteHandle]:
        """Returns the unfinished jobs and forgets them; later results are ignored."""
        handles = [*self._queue, *(worker.handle for worker in self.workers if worker.handle)]
        self._queue.clear()
        for worker in self.workers:
            worker.handle = None
        return handles

    def _refresh_workers(self) -> None:
        """Adds new workers, removes lost ones, releases idle ones that are not needed, and places jobs."""
        names = self._pool.workers()
        new = [name for name in names if name not in self._workers]
        descriptions: Mapping[str, WorkerDescription] = {}
        if new:
            descriptions = self._pool.call(new, node.describe_worker, self._needs_gpu, self._on_cpu)
        if descriptions:
            self._pool.call(list(descriptions), node.relieve, self._template.sweep, self._template.epoch)
        with self._locked() as later:
            for name in set(self._workers) - set(names):
                self._lose(self._workers.pop(name), later)
            for name, description in descriptions.items():
                self._welcome(name, description)
            for hanging in [worker for worker in self.workers if worker.is_overdue]:
                hanging.refusal = "it has been silent for longer than a trial may take"
                self._say(f"The worker on {worker_place(hanging)} takes no more trials: {hanging.refusal}.")
                self._lose(hanging, later)
            idle = [worker for worker in self.workers if worker.handle is None and not worker.leaving]
            spare = sum(not worker.leaving for worker in self.workers) - self._wanted
            # The worker that was used last has warm caches: it is the last to go.
            idle.sort(key=lambda worker: (not worker.refusal, worker.name == self._last_worker))
            for worker in idle:
                if worker.refusal or spare > 0 or not worker.has_time_for(self._required_seconds):
                    spare -= 1
                    worker.leaving = self._pool.retire(worker.name)
            self._dispatch(later)
            if self._refusals >= self._max_refusals and all(worker.refusal for worker in self.workers):
                raise EnvironmentStopError(
                    f"{self._refusals} worker{'s' if self._refusals > 1 else ''} joined, but none can take a"
                    " trial (see above). Finished trials are kept; fix this and run the same command."
                )

    def _send_cancellations(self) -> None:
        """Cancels jobs; called repeatedly, since a job may not have started at the first call."""
        with self._lock:
            ending = {
                worker.name: (worker.handle.job.uid, worker.handle.job.attempt)
                for worker in self.workers
                if worker.handle and worker.handle.is_ending
            }
        if ending:
            self._pool.call(list(ending), node.cancel, self._template.sweep, list(ending.values()))

    def _welcome(self, name: str, description: WorkerDescription) -> None:
        left = float("inf") if description.seconds_left is None else description.seconds_left
        worker = ConnectedWorker(name, description, time.monotonic() + left, refusal=description.refusal)
        self.model = self.model or ("" if worker.refusal else description.model)
        if not worker.refusal and description.model != self.model:
            worker.refusal = f"it has {description.model}, but this sweep is on {self.model}: "
            worker.refusal += _ANOTHER if self._same_gpu else "that model gets a separate sweep"
            self._keep_model(description.model)
        if not worker.refusal and not worker.has_time_for(self._required_seconds):
            worker.refusal = f"it ends in {left:.0f} s, but a trial needs {self._required_seconds:.0f} s"
        if worker.refusal:
            self._refusals += 1
            worker.leaving = self._pool.retire(name)
            if worker.leaving:
                # A replacement would likely be refused as well.
                self._max_workers = max(1, self._max_workers - 1)
                self._wanted = min(self._wanted, self._max_workers)
            self._say(f"The worker on {worker_place(worker)} takes no trials: {worker.refusal}.")
        else:
            self._refusals = 0
        self._workers[name] = worker

    def _keep_model(self, model: str) -> None:
        if self._folder is not None and not self._same_gpu and model not in self._models:
            self._models.append(model)
            write_json(self._folder / MODELS, self._models)

    def _lose(self, worker: ConnectedWorker, later: Later) -> None:
        handle, worker.handle = worker.handle, None
        if handle is not None:
            failure = _lost_failure(f"the worker on {worker_place(worker)} was lost")
            later.append(partial(handle.set_result, failure))

    def _may_take(self, worker: ConnectedWorker, seconds: float) -> bool:
        free = worker.handle is None and not worker.leaving and not worker.refusal
        return free and worker.has_time_for(seconds)

    # -- jobs -------------------------------------------------------------------------------------

    def _dispatch(self, later: Later) -> None:
        for handle in list(self._queue):
            takers = [
                worker for worker in self.workers if self._may_take(worker, required_seconds(handle.job))
            ]
            if not takers:
                continue
            # Trials that are compared run on the same worker, as long as it is present.
            worker = (
                takers[0]
                if handle.job.stage == SEARCH_STAGE
                else next((taker for taker in takers if taker.name == self._last_worker), takers[0])
            )
            self._queue.remove(handle)
            self._start(handle, worker, later)

    def _start(self, handle: RemoteHandle, worker: ConnectedWorker, later: Later) -> None:
        description, self._last_worker = worker.description, worker.name
        mates = [
            other.handle
            for other in self.workers
            if other.description.host == description.host and other.handle is not None
        ]
        handle.place = TrialPlace(
            host=description.host,
            gpu=description.gpu,
            job=description.job,
            worker=worker.name,
            num_neighbours=len(mates),
        )
        for mate in mates:
            assert mate.place is not None
            mate.place = dataclasses.replace(
                mate.place, num_neighbours=max(mate.place.num_neighbours, len(mates))
            )
        worker.handle, worker.since = handle, time.monotonic()
        parcel = dataclasses.replace(self._template, job=handle.job)
        try:
            future = self._pool.run(worker.name, node.run_parcel, parcel.to_bytes())
        except Exception as error:
            # The worker is gone, but does not count as lost yet.
            future = Future()
            future.set_exception(error)
        # A future that has ended calls back immediately.
        later.append(partial(future.add_done_callback, partial(self._receive, handle, worker)))

    def _receive(self, handle: RemoteHandle, worker: ConnectedWorker, future: Future[bytes]) -> None:
        """Takes a worker's result, unless the worker counts as lost."""
        with self._locked() as later:
            if worker.handle is not handle:
                return
            worker.handle = None
            try:
                outcome = self._unpack(handle, worker, future)
            except Exception as error:
                later.append(partial(handle.set_exception, error))
                return
            if isinstance(outcome, Failure) and outcome.kind is FailureKind.DEVICE_LOST:
                worker.refusal = "its GPU was lost"
                self._say(f"The worker on {worker_place(worker)} takes no more trials: its GPU was lost.")
            later.append(partial(handle.set_result, outcome))

    def _unpack(
        self, handle: RemoteHandle, worker: ConnectedWorker, future: Future[bytes]
    ) -> Outcome | Report:
        try:
            data = future.result()
        except WorkerLostError:
            # Nothing more is sent there unless it answers again.
            self._workers.pop(worker.name, None)
            return _lost_failure(f"the worker on {worker_place(worker)} was lost")
        except Exception as error:
            message = next(iter(str(error).splitlines()), "")[:MAX_SAID]
            return _lost_failure(
                f"the worker on {worker_place(worker)} failed ({type(error).__name__}: {message})"
            )
        assert handle.place is not None
        write_place(handle.folder, handle.place)
        try:
            unpack_into(handle.folder, data)
        except ValueError as error:
            return _lost_failure(str(error))
        return outcome_or_lost(handle.folder)

    def _write_jobs_file(self) -> None:
        """Writes the list of jobs if it has changed."""
        if self._folder is None:
            return
        listed: Mapping[str, Any] = {
            "jobs": list(self._pool.jobs()),
            "workers": [
                {
                    "host": worker.description.host,
                    "gpu": worker.description.gpu,
                    "job": worker.description.job,
                    "busy": bool(worker.handle),
                }
                for worker in self.workers
            ],
        }
        if listed != self._written:
            write_json(self._folder / JOBS, listed)
            self._written = listed


def _lost_failure(message: str) -> Failure:
    return Failure(kind=FailureKind.LOST, message=message)
