"""Runs a sweep's trials, and records and publishes their outcomes."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sweeper.core.config import TrialConfig
from sweeper.core.job import (
    SEARCH_STAGE,
    Job,
    MeasurePlan,
    read_outcome,
    seconds_of,
    write_job,
    write_outcome,
)
from sweeper.core.measurement import Failure, Outcome, Report
from sweeper.core.record import BASELINE, TrialRecord
from sweeper.results.numbers.trial_table import TrialTable
from sweeper.sweep.budget import Budget
from sweeper.sweep.folder.journal import NumberedJob
from sweeper.sweep.job_runner import JobRunner
from sweeper.sweep.progress import SweepProgress
from sweeper.sweep.publish import view_of
from sweeper.sweep.start.context import SweepContext
from sweeper.sweep.start.gpu_memory import MemoryWaiter
from sweeper.sweep.stopping import EndedError
from sweeper.system.failpoints import failpoint

QUALITY_CAP_SHARE = 1 / 15
SCREEN_SECONDS = 0.25


class TrialRunner:
    """Runs trials on the machine's slots.

    On Ctrl-C or a signal it cancels the running jobs, which run again when the sweep is continued.

    Attributes:
        table: All trials so far.
        jobs: The jobs under way.
    """

    def __init__(
        self, context: SweepContext, table: TrialTable, budget: Budget, progress: SweepProgress
    ) -> None:
        self._context = context
        self.table, self.budget, self.progress = table, budget, progress
        waiter = MemoryWaiter([slot.device for slot in context.machine.slots])
        self.jobs = JobRunner(
            context.launcher,
            context.machine.slots,
            progress.tick,
            waiter.wait,
            context.lock.check_now_and_then,
        )
        progress.follow(lambda: self.jobs.running)

    @classmethod
    def of(cls, context: SweepContext, table: TrialTable | None = None) -> Self:
        """Returns a runner with a new budget and progress, and an empty table by default."""
        table = table or TrialTable(context.spec)
        budget = Budget(context.spec.search.minutes, context.began)
        return cls(context, table, budget, SweepProgress(context, table, budget))

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Cancels the running jobs if the process was asked to end."""
        if isinstance(error, KeyboardInterrupt | EndedError):
            self.jobs.cancel()

    def plan(self, config: TrialConfig, stage: str) -> MeasurePlan:
        """Returns the measurement plan of a trial; reference trials have a separate cap in seconds."""
        spec = self._context.spec
        measure = spec.measure
        samples, above = self.table.quality_plan(config)
        if len(spec.objectives) > 1:
            above = 0.0
        searching = stage == SEARCH_STAGE
        return MeasurePlan(
            window_seconds=measure.window_seconds,
            repeats=measure.repeats,
            warmup_cap_seconds=measure.warmup_cap_seconds,
            cap_seconds=2 * measure.repeats * measure.window_seconds
            if searching
            else measure.reference_cap_seconds,
            quality_samples=samples,
            quality_above=above,
            quality_cap_seconds=QUALITY_CAP_SHARE * (spec.search.minutes or 100.0) * 60,
            quiet_canary_ms=self.quiet_canary_ms(),
            diagnose=spec.traits.takes_apart(searching=searching),
            screen_seconds=min(SCREEN_SECONDS, measure.window_seconds / 2),
            screen_above=self.table.screen_above(config) if searching else 0.0,
        )

    def quiet_canary_ms(self) -> float:
        """Returns the canary's time on the quiet machine in ms, from the probe and all windows so far."""
        times = (self._context.machine.canary_ms, self.table.quiet_canary_ms())
        return min((ms for ms in times if ms), default=0.0)

    def timeout(self) -> float:
        """Returns a job's time limit in seconds: the trial's, or about the sweep's if less is left."""
        return self.budget.timeout(self._context.spec.execution.trial_timeout_minutes * 60)

    def job(
        self, stage: str, config: TrialConfig, params: Mapping[str, Any] | None = None, origin: str = ""
    ) -> Job:
        """Returns the job of a new trial."""
        execution = self._context.spec.execution
        limits: dict[str, float] = {}
        if stage != "soak":
            # A soak is meant to be long.
            limits = {name: 60 * minutes for name, minutes in execution.stage_timeout_minutes.items()}
        return dataclasses.replace(
            self._context.template,
            uid=uuid.uuid4().hex,
            config=config,
            stage=stage,
            params=dict(params or {}),
            origin=origin,
            plan=self.plan(config, stage),
            timeout_seconds=self.timeout(),
            stage_seconds=limits,
            stall_seconds=execution.stall_seconds,
            reporter=self._reporter(),
        )

    def _reporter(self) -> str:
        """Returns the source of the baseline's speed, since all speeds of a sweep come from one source."""
        base = self.table.records.get(BASELINE)
        return base.measurement.reported_by if base is not None and base.measurement is not None else ""

    def run(self, folder: Path, job: Job) -> Outcome | Report:
        """Runs a job that is not a trial; returns the outcome in the folder instead, if there is one."""
        return self.jobs.run(folder, job)

    def start(
        self, number: int, stage: str, config: TrialConfig, params: Mapping[str, Any], origin: str
    ) -> None:
        """Starts a new trial."""
        job, journal = self.job(stage, config, params, origin), self._context.journal
        self.table.enter(journal.trial_record(number, job, None))
        self.jobs.start(number, journal.trial_folder(number), job)
        self.progress.tick()

    def finish(self, number: int, job: Job, outcome: Outcome | Report) -> TrialRecord:
        """Enters the outcome of a trial, and publishes it."""
        assert not isinstance(outcome, Report)
        self._context.lock.check()
        record = self.table.enter(self._context.journal.trial_record(number, job, outcome))
        failpoint("entered")
        if job.stage == SEARCH_STAGE:
            self.budget.add_trial(seconds_of(job, outcome))
        self.publish(record)
        self._context.observer.trial(record, self._context.name(record), self.table.speedup(record))
        return record

    def pass_over(
        self, number: int, config: TrialConfig, params: Mapping[str, Any], origin: str, objection: Failure
    ) -> None:
        """Enters a configuration without running it, because it is expected to fail."""
        job = dataclasses.replace(self.job(SEARCH_STAGE, config, params, origin), created_at=time.time())
        outcome = dataclasses.replace(objection, finished_at=job.created_at)
        journal = self._context.journal
        folder = journal.trial_folder(number)
        write_job(folder, job)
        write_outcome(folder, outcome)
        record = self.table.enter(journal.trial_record(number, job, outcome))
        self._context.observer.trial(record, self._context.name(record), None)

    def publish(self, record: TrialRecord) -> None:
        """Publishes a record as it is now."""
        view = view_of(record, self._context.varied, self.table.speedup(record))
        self._context.publisher.publish(record, view)

    def resume(self, entry: NumberedJob) -> None:
        """Restarts a trial that was cut off."""
        number = entry.number
        plan = self.plan(entry.job.config, entry.job.stage)
        self.jobs.resume(number, entry.folder, dataclasses.replace(entry.job, plan=plan))
        if number not in self.jobs.running:
            outcome = read_outcome(entry.folder)
            assert outcome is not None
            self.finish(number, entry.job, outcome)
