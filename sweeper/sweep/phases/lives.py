"""Runs the processes of a sweep's race as jobs: in turn where they can rest, else one after another.

A process that rests is asked for one window at a time. That is for configurations that are expensive to start
even if their compiled code is cached. It is also for scripts: the speed of a host changes within seconds, and
processes that take turns see the same changes.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from sweeper.core.job import MAX_ATTEMPTS, Job, read_job
from sweeper.core.launchers import traits
from sweeper.core.measurement import Failure, Measurement, Outcome, Report, Window
from sweeper.core.record import TrialRecord
from sweeper.core.recording import Recording
from sweeper.core.script import WATCH
from sweeper.core.units import GIB
from sweeper.race.log import Verified
from sweeper.race.policy import MAX_TURNS, Start
from sweeper.race.race import Taken
from sweeper.results.numbers.trial_table import TrialTable
from sweeper.script.run.failure import is_for_want_of_room
from sweeper.script.run.running import RECORD_ONLY
from sweeper.sweep.job_runner import JobRunner, Slot
from sweeper.sweep.start.context import SweepContext
from sweeper.sweep.trial_runner import TrialRunner
from sweeper.system.files import write_atomic
from sweeper.system.memory import available_bytes
from sweeper.telemetry.nvml.devices import is_exclusive
from sweeper.trainer.on_demand import END, END_AT_ONCE, GO, POLL_SECONDS, read_ready, turn_of

EXPENSIVE, EXPENSIVE_SECONDS = 4.0, 5.0
"""Start-up time beyond which processes rest: in windows, and in seconds; it must exceed both."""
MEMORY_SHARE = 0.85
MEMORY = "tree_mem_gib"
MAX_STEP_SECONDS = 3.0
"""Longest step of a script that takes turns: a turn has three of them."""
TICK_SECONDS = 0.25
LATE_SECONDS, LATE_SHARE = 15.0, 0.1
"""Seconds that a tune may take longer than it is given, or share of its time, whichever is more."""
REPORT_SECONDS = 4.0
"""Seconds from the last turn to the end of a tune."""
MIN_START_SECONDS = 10.0
"""Least time limit of a start of a tune."""


def late_seconds(seconds: float) -> float:
    """Returns how much longer a tune of so many seconds may take."""
    return max(LATE_SECONDS, LATE_SHARE * seconds)


def seconds_at_most(context: SweepContext, trials: TrialRunner) -> float | None:
    """Returns the seconds until the last turn of a race must have ended; None without a time limit."""
    left, minutes = trials.budget.seconds_left, context.spec.search.minutes
    if left is None or minutes is None:
        return None
    return left + late_seconds(60 * minutes) - REPORT_SECONDS


def limit_recording(
    recording: Recording | None, context: SweepContext, trials: TrialRunner
) -> Recording | None:
    """Returns the terms of a record that must be complete within the time of a tune."""
    left = seconds_at_most(context, trials)
    if recording is None or left is None:
        return recording
    limit = max(MIN_START_SECONDS, left)
    return dataclasses.replace(recording, limit_seconds=min(recording.limit_seconds or limit, limit))


def can_rest(
    context: SweepContext, table: TrialTable, records: Sequence[TrialRecord], window_seconds: float
) -> bool:
    """Returns whether processes take turns: slow to start again, or scripts that can be stopped."""
    spec, devices = context.spec, context.machine.devices
    if not traits(spec.execution.launcher).keeps_processes or spec.traits.rests == "never":
        return False
    memory_gib = min(device.memory_gib for device in devices)
    if any(is_exclusive(device.uuid) for device in devices):
        return False
    if spec.traits.takes_turns:
        return can_be_stopped(records, memory_gib)
    starts = (table.restart_seconds(record) for record in records if record.measurement is not None)
    if not is_expensive(max(starts, default=0.0), window_seconds):
        return False
    return may_fit_together(records, memory_gib)


def is_expensive(restart_seconds: float, window_seconds: float) -> bool:
    """Returns whether a start is so long that processes rest between their turns."""
    return restart_seconds > max(EXPENSIVE_SECONDS, EXPENSIVE * window_seconds)


def may_fit_together(records: Sequence[TrialRecord], memory_gib: float) -> bool:
    """Returns whether trials of a pipeline fit into memory together.

    Args:
        memory_gib: The device's memory in GiB; 0 if unknown.
    """
    measured = [record.measurement for record in records if record.measurement is not None]
    on_device = sum(m.gpu_mem_peak_gib or 0.0 for m in measured)
    # Loader workers share most of their memory with the training process, so only that one counts.
    on_host = sum(m.host_mem_peak_gib or 0.0 for m in measured)
    fits_device = not memory_gib or on_device <= MEMORY_SHARE * memory_gib
    return fits_device and on_host <= MEMORY_SHARE * _available_gib()


def can_be_stopped(records: Sequence[TrialRecord], memory_gib: float) -> bool:
    """Returns whether scripts can take turns: steps are watched, and all fit in memory together.

    Args:
        memory_gib: Memory of the GPU in GiB; 0 if there is none, or if it is unknown.
    """
    measured = [record.measurement for record in records if record.measurement is not None]
    on_host = sum(m.telemetry[MEMORY].p95 for m in measured if MEMORY in m.telemetry)
    if on_host > MEMORY_SHARE * _available_gib():
        return False
    # What else uses the GPU counts for each of them, since NVML reports the memory of all together.
    on_device = sum(m.gpu_mem_peak_gib or math.inf for m in measured if m.trains_on_gpu)
    if on_device > MEMORY_SHARE * memory_gib:
        return False
    return all(0 < m.step_ms <= 1000 * MAX_STEP_SECONDS and WATCH not in m.effective for m in measured)


def _available_gib() -> float:
    """Returns the free memory of this machine in GiB."""
    return available_bytes() / GIB


class Verifier(Protocol):
    """Compares the first steps of processes with those of the baseline's."""

    def recording(self, start: Start) -> Recording | None:
        """Returns how the first steps of a process are recorded; None if they are not."""

    def verify(self, life: int, start: Start, folder: Path, failure: str) -> Sequence[Verified]:
        """Returns what is known about the training of processes, once another one is warm.

        Args:
            folder: The folder of its job, with its record.
            failure: Why it has ended; empty if it has not failed.
        """


def _slot(context: SweepContext) -> Slot:
    """Returns the devices of a process: for a tune, all of them, as the script itself would see them."""
    slots = context.machine.slots
    if not context.spec.traits.is_of_changes or not context.spec.traits.takes_turns:
        return slots[0]
    devices = dict.fromkeys(name for slot in slots for name in slot.device.split(","))
    return slots[0] if len(devices) == 1 else Slot(",".join(devices))


class JobLives:
    """Runs each process of a race as a job. The job's folder has the process's number as its name."""

    MAX_TURNS = MAX_TURNS + 1
    """Most turns of a process."""

    def __init__(
        self,
        context: SweepContext,
        trials: TrialRunner,
        folder: Path,
        job_of: Callable[[Start], Job],
        num_arms: int,
        *,
        rests: bool,
        verifier: Verifier | None = None,
    ) -> None:
        """Starts nothing yet.

        Args:
            folder: Folder of all processes.
            job_of: Returns the job of a process that is to start.
            num_arms: Number of processes that may live at the same time, if they rest.
            rests: Whether they take turns.
            verifier: Compares their first steps; None if they are not recorded.
        """
        self._verifier = verifier
        self._context, self._trials, self._folder, self._job_of = context, trials, folder, job_of
        self._num_arms, self._rests = num_arms, rests
        slots = [_slot(context)] * num_arms
        self._runner = JobRunner(context.launcher, slots, trials.progress.tick)
        self._arms: dict[int, int] = {}
        self._num_returned: dict[int, int] = {}
        self._outcomes: dict[int, Outcome | Report] = {}
        self._withdrawn: set[int] = set()

    def start(self, life: int, start: Start) -> Sequence[Verified]:
        """Starts a process; returns once it is warm and rests, or has ended."""
        folder, job = self._folder_of(life), self._job_of(start)
        self._arms[life], self._num_returned[life] = start.arm, 0
        if self._verifier is not None:
            job = dataclasses.replace(
                job, recording=limit_recording(self._verifier.recording(start), self._context, self._trials)
            )
        if not self._rests:
            if not _is_of(folder, job):
                shutil.rmtree(folder, ignore_errors=True)
            self._outcomes[life] = self._trials.run(folder, job)
            return self._verify(life, start)
        # Its turns belong to a round that was cut off.
        shutil.rmtree(folder, ignore_errors=True)
        turns = folder / "turns"
        turns.mkdir(parents=True)
        # It mostly waits, also for all of the others, so its time limit is theirs together.
        seconds = self._num_arms * job.timeout_seconds
        job = dataclasses.replace(
            job,
            turns_folder=str(turns),
            plan=dataclasses.replace(job.plan, repeats=self.MAX_TURNS, cap_seconds=seconds),
            stage_seconds={},
            timeout_seconds=seconds,
            # A second attempt would take its turns alone.
            attempt=MAX_ATTEMPTS - 1,
        )
        self._runner.start(life, folder, job)
        self._wait(life, 0)
        return self._verify(life, start)

    def _verify(self, life: int, start: Start) -> Sequence[Verified]:
        if self._verifier is None:
            return ()
        if self._runner.has_ended(life):
            self._await_end(life)
        outcome = self._outcomes.get(life)
        failure = f"{outcome.kind}: {outcome.message}" if isinstance(outcome, Failure) else ""
        return self._verifier.verify(life, start, self._folder_of(life), failure)

    def _await_end(self, life: int) -> None:
        while life not in self._outcomes and self._runner.running:
            for ended, _, outcome in self._runner.wait():
                self._outcomes[ended] = outcome

    def has_company(self) -> bool:
        """Returns whether the processes take turns."""
        return self._rests

    def turn(self, life: int) -> Taken | None:
        """Lets a process take a turn; returns None if it has ended."""
        if life in self._outcomes:
            return None
        wanted = self._num_returned[life] + 1
        write_atomic(self._folder_of(life) / "turns" / GO, str(wanted))
        window = self._wait(life, wanted)
        if window is None:
            return None
        self._num_returned[life] = wanted
        return turn_of(window)

    def end(self, life: int) -> list[Taken] | None:
        """Ends a process; returns the windows that `turn` has not returned, or None if it has failed."""
        is_asked = life not in self._outcomes and not self._runner.has_ended(life)
        if life not in self._outcomes:
            word = END if self._may_be_examined() else END_AT_ONCE
            write_atomic(self._folder_of(life) / "turns" / GO, str(word))
            self._await_end(life)
        measured = self._outcomes.get(life)
        if isinstance(measured, Failure):
            self._tell_failure(life, measured)
        if not isinstance(measured, Measurement):
            return None
        if (is_asked or life in self._withdrawn) and not self._num_returned[life]:
            # It has taken no turn: its window is its warm-up.
            return []
        return [turn_of(window) for window in measured.windows[self._num_returned[life] :]]

    def _may_be_examined(self) -> bool:
        """Returns whether there is time to examine a script after its turns."""
        return True

    def _tell_failure(self, life: int, failure: Failure) -> None:
        if failure.message == RECORD_ONLY:
            return
        name = self._context.name(self._trials.table.records[self._arms[life]])
        self._context.observer.line(
            f"A confirmation run of {name} failed ({failure.kind}: {failure.message})."
        )

    def is_crowded_out(self, life: int) -> bool:
        """Returns whether a process has failed for want of memory or of a port, beside others."""
        outcome = self._outcomes.get(life)
        is_alone = not self._rests or not set(self._arms) - {life} - set(self._outcomes)
        if is_alone or not isinstance(outcome, Failure):
            return False
        return is_for_want_of_room(outcome.kind, f"{outcome.message}\n{outcome.detail}")

    def kill(self) -> None:
        """Kills all processes."""
        self._runner.cancel()

    def _is_too_late(self) -> bool:
        """Returns whether a turn must end: of other sweeps, one round takes place in any case."""
        left = seconds_at_most(self._context, self._trials)
        return left is not None and left < 0 and self._context.spec.traits.is_of_changes

    def _folder_of(self, life: int) -> Path:
        return self._folder / f"{life:04d}"

    def _wait(self, life: int, wanted: int) -> Window | None:
        """Returns the window of a process's turn once it has taken so many; None if it has ended before."""
        folder, ticked = self._folder_of(life) / "turns", time.monotonic()
        while not self._runner.has_ended(life):
            ready = read_ready(folder)
            if ready is not None and ready[0] >= wanted:
                return ready[1]
            time.sleep(POLL_SECONDS)
            if time.monotonic() - ticked > TICK_SECONDS:
                self._trials.progress.tick()
                ticked = time.monotonic()
                if wanted and self._is_too_late():
                    # It is in an evaluation, or its steps take very long.
                    self._withdrawn.add(life)
                    write_atomic(folder / GO, str(END_AT_ONCE))
        return None


def _is_of(folder: Path, job: Job) -> bool:
    """Returns whether what a folder has is of this process, if there is anything."""
    try:
        params = read_job(folder).params
    except FileNotFoundError:
        return False
    return all(params.get(name) == job.params[name] for name in ("round", "arm"))
