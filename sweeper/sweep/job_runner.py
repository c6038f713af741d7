"""Runs jobs to their outcomes on slots, and retries environment failures."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.job import (
    ANYWHERE,
    MAX_ATTEMPTS,
    OUTCOME,
    Job,
    is_retried,
    read_job,
    read_outcome,
    write_job,
    write_outcome,
)
from sweeper.core.measurement import Failure, FailureKind, Outcome, Report
from sweeper.core.place import TrialPlace, write_place
from sweeper.errors import EnvironmentStopError
from sweeper.launch.launcher import Handle, Launcher, PlacedHandle, wait_any
from sweeper.system.failpoints import failpoint
from sweeper.system.files import write_atomic

TICK_SECONDS = 0.25
CANCEL_SECONDS = 10.0
MAX_AT_ONCE = 8
INTERRUPTED = "interrupted"
"""File in the folder of a job that was ended with the sweep, which does not count as an attempt."""
ROOM_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Slot:
    """Room for one job: a device and the cores near it."""

    device: str
    cpus: tuple[int, ...] = ()


@dataclass(slots=True)
class _RunningJob:
    key: int
    job: Job
    folder: Path
    slot: Slot
    handle: Handle | None = None
    num_neighbours: int = 0


class JobRunner:
    """Runs jobs on the slots of a launcher, one per slot at a time."""

    def __init__(
        self,
        launcher: Launcher,
        slots: Sequence[Slot],
        tick: Callable[[], None],
        wait_for_memory: Callable[[str], None] = lambda device: None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Starts nothing yet.

        Args:
            tick: Function that is called a few times per second while waiting for a job.
            wait_for_memory: Function that is called with a slot's device before the next job on it.
            check: Function that is called before anything is started or written; it raises if the sweep was
                taken over.
        """
        self._check = check
        self._launcher = launcher
        self._wait_for_memory, self._unsettled = wait_for_memory, set[str]()
        self._free = list(slots)
        self._tick = tick
        self._max_jobs = sys.maxsize
        self._running: dict[int, _RunningJob] = {}
        # A SimpleQueue waits for ever if a signal is handled past the timeout of `get` (CPython 3.11).
        self._ended: queue.Queue[_RunningJob] = queue.Queue()
        self._waiting: list[tuple[int, Path, Job]] = []

    @property
    def has_room(self) -> bool:
        """Whether another job may start: a slot is free, and a worker is there to take it."""
        room = min(self._max_jobs, self._launcher.capacity) - len(self._running)
        return min(len(self._free), room) > len(self._waiting)

    def limit(self, max_jobs: int) -> None:
        """Runs no more than `max_jobs` jobs at once from now on."""
        self._max_jobs = max_jobs

    @property
    def running(self) -> Mapping[int, Job]:
        """The jobs under way, by key."""
        return {key: entry.job for key, entry in self._running.items()}

    def start(self, key: int, folder: Path, job: Job) -> None:
        """Writes the job's config.json and starts it on a free slot."""
        self._check()
        slot = self._free.pop(0)
        if slot.device in self._unsettled:
            self._unsettled.discard(slot.device)
            self._wait_for_memory(slot.device)
        job = dataclasses.replace(job, device=slot.device, cpus=slot.cpus)
        if not job.created_at:
            job = dataclasses.replace(job, created_at=time.time())
        write_job(folder, job)
        failpoint("placed")
        running = _RunningJob(key, job, folder, slot, num_neighbours=len(self._running))
        for neighbour in self._running.values():
            neighbour.num_neighbours = max(neighbour.num_neighbours, running.num_neighbours)
        self._running[key] = running
        running.handle = self._launcher.submit(folder)
        running.handle.add_done_callback(lambda _: self._ended.put(running))
        failpoint("submitted")

    def has_ended(self, key: int) -> bool:
        """Returns whether a job has ended, with or without an outcome in its folder."""
        entry = self._running.get(key)
        return entry is None or (entry.handle is not None and entry.handle.done())

    def wait(self) -> Iterator[tuple[int, Job, Outcome | Report]]:
        """Waits for jobs to end and yields them, at least one; nothing if none is running."""
        while self._running:
            finished = [entry for entry in self._take_ended() if self._finish_attempt(entry)]
            for entry in finished:
                outcome = read_outcome(entry.folder)
                assert outcome is not None
                yield entry.key, entry.job, outcome
            if finished:
                return

    def _take_ended(self) -> list[_RunningJob]:
        """Returns the jobs that have ended since the last call, after a short wait if none has."""
        ended: list[_RunningJob] = []
        if self._ended.empty():
            self._tick()
            with contextlib.suppress(queue.Empty):
                ended.append(self._ended.get(timeout=TICK_SECONDS))
            self._check()
        # Only a few at a time, since their slots stay idle until they are entered.
        while len(ended) < MAX_AT_ONCE and not self._ended.empty():
            ended.append(self._ended.get())
        # Jobs that were cancelled meanwhile are left out.
        return [entry for entry in ended if self._running.get(entry.key) is entry]

    def _finish_attempt(self, entry: _RunningJob) -> bool:
        """Frees the slot of an attempt that has ended; returns whether its job is over, and not retried."""
        assert entry.handle is not None
        outcome = entry.handle.result()
        self._unsettled.add(entry.slot.device)
        _write_missing_place(entry)
        retried, is_device_lost = is_retried(entry.job, outcome), _is_device_lost(entry, outcome)
        del self._running[entry.key]
        is_only_slot = not (self._free or self._running)
        if not is_device_lost or (retried and is_only_slot):
            # A lost device is used again only if there is no other, as it may come back.
            self._free.append(entry.slot)
        if retried:
            self._queue_retry(entry)
        else:
            _write_missing_outcome(entry, outcome)
            if is_device_lost and is_only_slot:
                raise EnvironmentStopError(
                    f"GPU lost: {entry.slot.device} did not come back in {entry.job.attempt + 1} attempts."
                    " What was measured is kept. Reset the GPU or restart the machine, and run the same"
                    " command again."
                )
        self._start_waiting()
        return not retried

    def _queue_retry(self, entry: _RunningJob) -> None:
        """Moves the files of the attempt aside, and queues the next one."""
        if not (entry.folder / OUTCOME).exists():
            _try_disk(entry.folder)
        retry(entry.folder, entry.job.attempt)
        job = dataclasses.replace(entry.job, attempt=entry.job.attempt + 1)
        self._waiting.append((entry.key, entry.folder, job))

    def _start_waiting(self) -> None:
        """Starts waiting retries on free slots."""
        while self._waiting and self._free:
            self.start(*self._waiting.pop(0))

    def run(self, folder: Path, job: Job) -> Outcome | Report:
        """Runs one job to its outcome, or returns an outcome that exists already."""
        outcome = read_outcome(folder)
        if outcome is not None:
            before = read_job(folder)
            if not is_retried(before, outcome):
                return outcome
            # The environment ended it together with the supervisor that would have run it again.
            retry(folder, before.attempt)
            job = dataclasses.replace(job, attempt=before.attempt + 1)
        self.start(-1, folder, job)
        for _, _, outcome in self.wait():
            return outcome
        raise AssertionError("a started job ends")

    def cancel(self) -> None:
        """Ends every job under way; those without an outcome run again when the sweep continues."""
        for entry in self._running.values():
            with contextlib.suppress(OSError):
                (entry.folder / INTERRUPTED).touch()
        handles = [entry.handle for entry in self._running.values() if entry.handle is not None]
        for handle in handles:
            handle.cancel()
        deadline = time.monotonic() + CANCEL_SECONDS
        while (left := [handle for handle in handles if not handle.done()]) and time.monotonic() < deadline:
            wait_any(left, TICK_SECONDS)
        self._free.extend(entry.slot for entry in self._running.values())
        self._running.clear()
        self._waiting.clear()

    def resume(self, key: int, folder: Path, job: Job) -> None:
        """Restarts a job whose attempt was lost with an earlier supervisor."""
        attempt = job.attempt if (folder / INTERRUPTED).exists() else job.attempt + 1
        (folder / INTERRUPTED).unlink(missing_ok=True)
        if attempt >= MAX_ATTEMPTS:
            lost = Failure(
                kind=FailureKind.LOST,
                message=f"the sweep was ended {MAX_ATTEMPTS} times while this trial ran",
                # The end is unknown, and the hours until the sweep was continued are not the trial's.
                finished_at=job.created_at,
            )
            write_outcome(folder, lost)
            return
        retry(folder, job.attempt)
        self.start(key, folder, dataclasses.replace(job, attempt=attempt, created_at=0.0))


def _is_device_lost(entry: _RunningJob, outcome: Outcome | Report) -> bool:
    """Returns whether the slot's device is gone; on a cluster, the launcher avoids the worker instead."""
    is_lost = isinstance(outcome, Failure) and outcome.kind is FailureKind.DEVICE_LOST
    return is_lost and entry.slot.device != ANYWHERE


def _write_missing_place(entry: _RunningJob) -> None:
    """Writes where a job ran, unless its launcher knows that better and has written it."""
    if not isinstance(entry.handle, PlacedHandle) or entry.handle.place is None:
        write_place(entry.folder, TrialPlace(num_neighbours=entry.num_neighbours))


def _write_missing_outcome(entry: _RunningJob, outcome: Outcome | Report) -> None:
    """Writes the final outcome of a job whose worker left none."""
    if not (entry.folder / OUTCOME).exists():
        write_outcome(entry.folder, dataclasses.replace(outcome, finished_at=time.time()))


def _try_disk(folder: Path) -> None:
    """Raises OSError if the disk is full, which explains an attempt that left nothing."""
    room = folder / ".room"
    try:
        write_atomic(room, " " * ROOM_BYTES)
    finally:
        room.unlink(missing_ok=True)


def retry(folder: Path, attempt: int) -> None:
    """Moves the files of an attempt aside, so that the folder is as before the attempt."""
    for name in (OUTCOME, "worker.log"):
        if (folder / name).exists():
            (folder / name).rename(folder / f"attempt-{attempt}-{name}")
    failpoint("put-aside")
