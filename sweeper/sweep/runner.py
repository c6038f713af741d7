"""Running jobs to their outcomes: slots, attempts, and the environment's failures tried again."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.job import OUTCOME, Job, read_outcome, write_job, write_outcome
from sweeper.core.measurement import RETRIED, Failure, FailureKind, Outcome, Report
from sweeper.execution.launcher import Handle, Launcher, wait_any

MAX_ATTEMPTS = 3
TICK_SECONDS = 0.25
CANCEL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Slot:
    """A device and the cores beside it: room for one job."""

    device: str
    cpus: tuple[int, ...] = ()


@dataclass(slots=True)
class _Running:
    key: int
    job: Job
    folder: Path
    handle: Handle
    slot: Slot


class JobRunner:
    """Runs jobs on the slots of a launcher; no more at once than there are slots."""

    def __init__(
        self,
        launcher: Launcher,
        slots: Sequence[Slot],
        tick: Callable[[], None],
        settle: Callable[[str], None] = lambda device: None,
    ) -> None:
        """Nothing is started yet.

        Args:
            tick: Called a few times a second while a job is waited for.
            settle: Called with a slot's device before the next job on it, where the last one failed.
        """
        self._launcher = launcher
        self._settle_device, self._unsettled = settle, set[str]()
        self._free = list(slots)
        self._tick = tick
        self._running: list[_Running] = []

    @property
    def has_room(self) -> bool:
        """Whether another job may start."""
        return bool(self._free)

    @property
    def running(self) -> Mapping[int, Job]:
        """The jobs under way, by key."""
        return {each.key: each.job for each in self._running}

    def start(self, key: int, folder: Path, job: Job) -> None:
        """Writes the job's config.json and starts it on a free slot."""
        slot = self._free.pop(0)
        if slot.device in self._unsettled:
            self._unsettled.discard(slot.device)
            self._settle_device(slot.device)
        job = dataclasses.replace(job, device=slot.device, cpus=slot.cpus)
        if not job.asked_at:
            job = dataclasses.replace(job, asked_at=time.time())
        write_job(folder, job)
        self._running.append(_Running(key, job, folder, self._launcher.submit(folder), slot))

    def wait(self) -> Iterator[tuple[int, Job, Outcome | Report]]:
        """Yields jobs that have ended, at least one; nothing where none is running."""
        while self._running:
            ended = [each for each in self._running if each.handle.done()]
            finished = [each for each in ended if self._settle(each)]
            for each in finished:
                outcome = read_outcome(each.folder)
                assert outcome is not None
                yield each.key, each.job, outcome
            if finished:
                return
            self._tick()
            wait_any([each.handle for each in self._running], TICK_SECONDS)

    def _settle(self, each: _Running) -> bool:
        """Takes an ended job off its slot, unless it is tried again; returns whether it is over."""
        outcome = each.handle.result()
        if isinstance(outcome, Failure):
            self._unsettled.add(each.slot.device)
        if is_tried_again(each.job, outcome):
            self._running.remove(each)
            self._free.append(each.slot)
            retry(each.folder, each.job.attempt)
            self.start(each.key, each.folder, dataclasses.replace(each.job, attempt=each.job.attempt + 1))
            return False
        if not (each.folder / OUTCOME).exists():
            # The worker left nothing, and that three times: this is its outcome.
            write_outcome(each.folder, outcome)
        self._running.remove(each)
        self._free.append(each.slot)
        return True

    def run(self, folder: Path, job: Job) -> Outcome | Report:
        """Runs one job to its outcome, or returns the outcome that is there already."""
        known = read_outcome(folder)
        if known is not None:
            return known
        self.start(-1, folder, job)
        for _, _, outcome in self.wait():
            return outcome
        raise AssertionError("a started job ends")

    def cancel(self) -> None:
        """Ends every job under way; what leaves no outcome runs again when the sweep goes on."""
        for each in self._running:
            each.handle.cancel()
        deadline = time.monotonic() + CANCEL_SECONDS
        while not all(each.handle.done() for each in self._running) and time.monotonic() < deadline:
            wait_any([each.handle for each in self._running if not each.handle.done()], TICK_SECONDS)
        self._free.extend(each.slot for each in self._running)
        self._running.clear()

    def resume(self, key: int, folder: Path, job: Job) -> None:
        """Starts a job again whose attempt was lost with an earlier supervisor."""
        attempt = job.attempt + 1
        if attempt >= MAX_ATTEMPTS:
            lost = Failure(
                kind=FailureKind.LOST,
                message=f"the sweep was ended {MAX_ATTEMPTS} times while this trial ran",
                # Nobody knows when; the hours until somebody came back are not the trial's.
                finished_at=job.asked_at,
            )
            write_outcome(folder, lost)
            return
        retry(folder, job.attempt)
        self.start(key, folder, dataclasses.replace(job, attempt=attempt, asked_at=0.0))


def is_tried_again(job: Job, outcome: Outcome | Report | None) -> bool:
    """Returns whether `outcome` is the environment's doing, and the job has attempts left."""
    return isinstance(outcome, Failure) and outcome.kind in RETRIED and job.attempt + 1 < MAX_ATTEMPTS


def retry(folder: Path, attempt: int) -> None:
    """Puts what an attempt left behind aside, so that the folder is as before it."""
    for name in (OUTCOME, "worker.log"):
        if (folder / name).exists():
            (folder / name).rename(folder / f"attempt-{attempt}-{name}")
