"""Writes profiler traces of the baseline and the winner at the end of a sweep."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sweeper.core.job import TRACE, TRACE_RUNNER, MeasurePlan
from sweeper.core.measurement import Failure
from sweeper.core.record import BASELINE
from sweeper.results.numbers.trial_table import TrialTable
from sweeper.schema import SweepSpec
from sweeper.sweep.start.context import SweepContext
from sweeper.sweep.trial_runner import TrialRunner

TRACED_SECONDS = 1.5
"""Seconds from the first step of a trace to the end of its process."""


def is_traced(spec: SweepSpec) -> bool:
    """Returns whether traces are written; a script has none."""
    return spec.measure.trace and spec.traits.uses_own_torch


def trace_seconds(spec: SweepSpec, table: TrialTable) -> float:
    """Returns about how many seconds the traces of the baseline and of a winner take."""
    measured = table.records[BASELINE].measurement
    if measured is None or not is_traced(spec):
        return 0.0
    return 2 * (measured.startup_seconds + measured.first_step_seconds + TRACED_SECONDS)


def write_traces(context: SweepContext, trials: TrialRunner, numbers: Sequence[int | None]) -> None:
    """Writes a profiler trace of some steps to the folder of each trial in `numbers`."""
    trials.progress.begin("tracing")
    journal, warmup = context.journal, context.spec.measure.warmup_cap_seconds
    for number in numbers:
        record = trials.table.records.get(number) if number is not None else None
        if record is None:
            continue
        job = dataclasses.replace(
            trials.job("trace", record.config.on_one_device()),
            runner=TRACE_RUNNER,
            trace=str(journal.trial_folder(record.number).resolve() / TRACE),
            plan=MeasurePlan(repeats=0, warmup_cap_seconds=warmup),
        )
        folder = journal.setup_folder(f"trace-{record.number}")
        outcome = trials.run(folder, job)
        if (folder / TRACE).exists():
            # A remote worker has only the job's folder.
            (folder / TRACE).replace(job.trace)
        if isinstance(outcome, Failure):
            context.observer.line(f"No trace of {context.name(record)} ({outcome.kind}: {outcome.message}).")
