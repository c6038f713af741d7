"""Runs a confirmation round with processes that stay: each starts once and measures windows on request.

It is for candidates that are expensive to start even if their compiled code is cached: a fresh process for
every window would spend most of its time starting. It is also for scripts, which are stopped between their
windows: the speed of a host changes within seconds, and alternating windows see the same changes. The process
stays the unit of repetition.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from sweeper.analysis.trial_table import TrialTable
from sweeper.core.job import OUTCOME, Job, read_outcome
from sweeper.core.launchers import traits
from sweeper.core.measurement import Measurement
from sweeper.core.record import TrialRecord
from sweeper.core.retries import MAX_ATTEMPTS
from sweeper.core.script import WATCH
from sweeper.sweep.context import SweepContext
from sweeper.sweep.job_runner import JobRunner
from sweeper.sweep.progress import Progress
from sweeper.sweep.trial_runner import TrialRunner
from sweeper.system.files import write_atomic
from sweeper.telemetry.nvml.devices import is_exclusive
from sweeper.trainer.on_demand import END, GO, POLL_SECONDS, READY, number_in

MIN_PROCESSES = 5
WINDOWS = 4
EXPENSIVE, EXPENSIVE_SECONDS = 4.0, 5.0
"""Start-up time beyond which processes are kept: in windows, and in seconds; it must exceed both."""
MEMORY_SHARE = 0.85
MEMORY = "tree_mem_gib"
MAX_STEP_SECONDS = 0.1
"""Longest step of a script that takes turns: a step that a stop interrupts is lost."""


def keeps_processes(
    context: SweepContext, table: TrialTable, records: Sequence[TrialRecord], window_seconds: float
) -> bool:
    """Returns whether the processes of a round stay: slow to start again, or scripts that can take turns."""
    spec, devices = context.spec, context.machine.devices
    if not traits(spec.execution.launcher).keeps_processes or spec.traits.rests == "never":
        return False
    if spec.traits.takes_turns:
        return can_take_turns(records)
    starts = (table.restart_seconds(record) for record in records if record.measurement is not None)
    if not is_expensive(max(starts, default=0.0), window_seconds):
        return False
    memory_gib = min(each.memory_gib for each in devices)
    return fit(records, memory_gib) and not any(is_exclusive(each.uuid) for each in devices)


def is_expensive(restart_seconds: float, window_seconds: float) -> bool:
    """Returns whether a start is so long that processes are kept."""
    return restart_seconds > max(EXPENSIVE_SECONDS, EXPENSIVE * window_seconds)


def fit(records: Sequence[TrialRecord], memory_gib: float) -> bool:
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


def can_take_turns(records: Sequence[TrialRecord]) -> bool:
    """Returns whether scripts can take turns: steps are watched and short, and all fit in memory together.

    They cannot on a GPU, which goes on with the work that a stopped process has queued.
    """
    measured = [record.measurement for record in records if record.measurement is not None]
    taken = sum(m.telemetry[MEMORY].p95 for m in measured if MEMORY in m.telemetry)
    if taken > MEMORY_SHARE * _available_gib():
        return False
    return all(
        0 < m.step_ms <= 1000 * MAX_STEP_SECONDS and WATCH not in m.effective and not m.trains_on_gpu
        for m in measured
    )


def _available_gib() -> float:
    """Returns the free memory of this machine in GiB."""
    return float(psutil.virtual_memory().available / 2**30)


def kept_round(
    context: SweepContext, trials: TrialRunner, jobs: Mapping[int, tuple[Path, Job]], seed: int
) -> dict[int, Measurement]:
    """Starts the jobs one after another and requests windows, in a new random order each time.

    Args:
        jobs: Folder and job by trial number, in the order in which they start.

    Returns:
        The measurements of the completed jobs; outcomes already in a folder count.
    """
    draw = random.Random(seed)
    slot = context.machine.slots[0]
    runner = JobRunner(context.launcher, [slot] * len(jobs), trials.progress.tick)
    try:
        waiting = []
        for number, (folder, job) in jobs.items():
            if read_outcome(folder) is not None:
                continue
            turns = folder / "turns"
            turns.mkdir(parents=True, exist_ok=True)
            for name in (READY, GO):
                (turns / name).unlink(missing_ok=True)
            # The job mostly waits, so only the end of the round or its keeper's time limit ends it.
            # It waits for all of the others, too.
            seconds = len(jobs) * job.timeout_seconds
            plan = dataclasses.replace(job.plan, repeats=WINDOWS + 1, cap_seconds=seconds)
            kept = dataclasses.replace(
                job,
                turns=str(turns),
                plan=plan,
                stage_seconds={},
                timeout_seconds=seconds,
                # A second attempt would take its turns alone.
                attempt=MAX_ATTEMPTS - 1,
            )
            runner.start(number, folder, kept)
            _wait_for(trials.progress, folder, 0, functools.partial(runner.has_ended, number))
            waiting.append((number, folder))
        for taken in range(WINDOWS):
            draw.shuffle(waiting)
            for number, folder in waiting:
                write_atomic(folder / "turns" / GO, str(taken + 1))
                _wait_for(trials.progress, folder, taken + 1, functools.partial(runner.has_ended, number))
        for _, folder in waiting:
            write_atomic(folder / "turns" / GO, str(END))
        while runner.running:
            list(runner.wait())
    except BaseException:
        runner.cancel()
        raise
    outcomes = {number: read_outcome(folder) for number, (folder, _) in jobs.items()}
    return {number: found for number, found in outcomes.items() if isinstance(found, Measurement)}


def _wait_for(progress: Progress, folder: Path, taken: int, has_ended: Callable[[], bool]) -> None:
    """Waits until the job in `folder` has taken `taken` windows, or its keeper has ended it."""
    ticked = time.monotonic()
    ready = folder / "turns" / READY
    # A keeper that was killed leaves no outcome.
    while not (folder / OUTCOME).exists() and not has_ended():
        known = number_in(ready)
        if known is not None and known >= taken:
            return
        time.sleep(POLL_SECONDS)
        if time.monotonic() - ticked > 0.25:
            progress.tick()
            ticked = time.monotonic()
