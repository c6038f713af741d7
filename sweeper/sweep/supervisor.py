"""The supervisor: one sweep from its first line to its result.

set up ─► baseline ─► its loss over seeds ─► references ─► search ─► confirm ─► result.json
          everything already in the folder is passed over; what was cut off runs again
"""

from __future__ import annotations

import dataclasses
import statistics
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sweeper.analysis.labels import run_name
from sweeper.core.config import TrialConfig
from sweeper.core.errors import EnvironmentStopError, NothingFeasibleError
from sweeper.core.job import QUALITY_RUNNER, TRACE, TRACE_RUNNER, Job, MeasurePlan
from sweeper.core.measurement import Failure, FailureKind, Outcome, Report
from sweeper.core.record import TrialRecord
from sweeper.execution.launcher import Launcher
from sweeper.search import Searcher, SpaceExhaustedError
from sweeper.spec import SweepSpec
from sweeper.sweep.book import (
    BASELINE,
    MIN_STEPS_OF_LARGEST,
    NUM_SEEDS,
    Book,
    auto_quality_samples,
    quality_of,
)
from sweeper.sweep.journal import Journal
from sweeper.sweep.lock import SweepLock
from sweeper.sweep.observer import Observer, Status
from sweeper.sweep.publishing import Publisher, view_of
from sweeper.sweep.runner import JobRunner
from sweeper.sweep.setup import Machine

CONFIRM_SHARE = 0.2
QUALITY_SECONDS = 20.0
QUALITY_SHARE = 1 / 60
QUALITY_CAP_SHARE = 1 / 15
SAME_ERROR_STOPS = 3
LEAST_TIMEOUT_SECONDS = 30.0


class Supervisor:
    """Runs the trials of a sweep whose set-up is done."""

    def __init__(
        self,
        *,
        journal: Journal,
        lock: SweepLock,
        spec: SweepSpec,
        machine: Machine,
        launcher: Launcher,
        publisher: Publisher,
        observer: Observer,
        template: Job,
        varied: Sequence[str],
        began: float,
    ) -> None:
        self.journal, self.lock, self.observer = journal, lock, observer
        self.spec, self.machine, self.publisher = spec, machine, publisher
        self.book = Book(journal, spec)
        self.runner = JobRunner(launcher, machine.slots, self._tick)
        self.template = template
        self.varied = varied
        self.phase, self.done, self.total = "references", 0, 0
        self._began = began
        self._used = 0.0
        self._times: list[float] = []

    # -- time -------------------------------------------------------------------------------------

    @property
    def seconds_left(self) -> float | None:
        """Seconds of `search.minutes` that are left, confirmation included; None without a limit."""
        minutes = self.spec.search.minutes
        if minutes is None:
            return None
        return minutes * 60 - self._used - (time.monotonic() - self._began)

    def _search_left(self) -> float | None:
        left = self.seconds_left
        if left is None or not self.spec.confirm.rounds:
            return left
        return left - CONFIRM_SHARE * (self.spec.search.minutes or 0.0) * 60

    # -- one trial --------------------------------------------------------------------------------

    def plan(self, config: TrialConfig, stage: str) -> MeasurePlan:
        """Returns how a trial is measured; a reference trial has a cap in seconds."""
        measure = self.spec.measure
        samples, above = self.book.quality_plan(config)
        if len(self.spec.objectives) > 1:
            above = 0.0
        return MeasurePlan(
            window_seconds=measure.window_seconds,
            repeats=measure.repeats,
            warmup_cap_seconds=measure.warmup_cap_seconds,
            cap_seconds=measure.reference_cap_seconds
            if stage != "search"
            else 2 * measure.repeats * measure.window_seconds,
            quality_samples=samples,
            quality_above=above,
            quality_cap_seconds=QUALITY_CAP_SHARE * (self.spec.search.minutes or 100.0) * 60,
            quiet_canary_ms=self.quiet_canary_ms(),
        )

    def quiet_canary_ms(self) -> float:
        """Returns the canary's time on the quiet machine, by the probe and by all windows so far."""
        known = (self.machine.canary_ms, self.book.quiet_canary_ms())
        return min((ms for ms in known if ms), default=0.0)

    def timeout(self) -> float:
        """Returns the seconds a job may take: its own limit, and hardly more than the sweep has left."""
        limit = self.spec.execution.trial_timeout_minutes * 60
        left = self.seconds_left
        return limit if left is None else min(limit, max(LEAST_TIMEOUT_SECONDS, left))

    def job(self, stage: str, config: TrialConfig, params: Mapping[str, Any] | None = None) -> Job:
        """Returns the job of a new trial."""
        return dataclasses.replace(
            self.template,
            uid=uuid.uuid4().hex,
            config=config,
            stage=stage,
            params=dict(params or {}),
            plan=self.plan(config, stage),
            timeout_seconds=self.timeout(),
        )

    def _start(self, number: int, stage: str, config: TrialConfig, params: Mapping[str, Any]) -> None:
        job = self.job(stage, config, params)
        self.book.enter(number, job, None)
        self.runner.start(number, self.journal.trial_folder(number), job)
        self._tick()

    def _finish(self, number: int, job: Job, outcome: Outcome | Report) -> TrialRecord:
        self.lock.check()
        record = self.book.enter(number, job, outcome)
        if job.stage == "search":
            self._times.append(outcome.finished_at - job.asked_at)
        self._publish(record)
        self.observer.trial(record, self.name(record), self.book.x_baseline(record))
        self._stop_on_repeated_error()
        return record

    def name(self, record: TrialRecord) -> str:
        """Returns a record's name."""
        return run_name(record.number, record.stage, record.config, self.varied)

    def _publish(self, record: TrialRecord) -> None:
        self.publisher.publish(record, view_of(record, self.varied, self.book.x_baseline(record)))

    def _stop_on_repeated_error(self) -> None:
        errors = [r.failure.message for r in self.book.finished() if r.failure and _is_users(r)]
        measured = any(r.measurement for r in self.book.searched())
        if errors and errors.count(errors[-1]) >= SAME_ERROR_STOPS and not measured:
            raise EnvironmentStopError(
                f"the same error ended {SAME_ERROR_STOPS} trials: {errors[-1]}. "
                f"All of it is in {self.journal.folder}/trials/*/worker.log."
            )

    def _tick(self) -> None:
        best = self.book.best()
        self.observer.status(
            Status(
                phase=self.phase,
                done=self.done,
                total=self.total,
                best=self.name(best) if best else "",
                best_ratio=self.book.x_baseline(best) if best else None,
                running=tuple(self._doing(key, job) for key, job in self.runner.running.items()),
                seconds_left=self.seconds_left,
            )
        )

    def _doing(self, key: int, job: Job) -> str:
        record = self.book.records.get(job.params.get("trial", key))
        return self.name(record) if record else job.stage

    # -- phases -----------------------------------------------------------------------------------

    def run(self, confirm: Callable[[Supervisor], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Runs every phase, and returns the result that is then in the folder."""
        unfinished = self.book.load()
        self._used = self._seconds_on_disk()
        self._cut_off = {entry.number: entry for entry in unfinished}
        self._baseline()
        self._losses()
        self.book.judge_all()
        for number, config in enumerate(self.spec.references()[1:], start=1):
            self._reference(number, "reference", config)
        self.total = self.spec.search.trials
        reason = self._search()
        result = {"reason": reason, **confirm(self)}
        if self.spec.measure.trace:
            self._trace([BASELINE, result["winner"]])
        self.journal.finish(result)
        return result

    def _trace(self, numbers: Sequence[int | None]) -> None:
        """Leaves a profiler trace of some steps in the folders of the trials `numbers`."""
        self.phase = "tracing"
        for number in numbers:
            record = self.book.records.get(number) if number is not None else None
            if record is None:
                continue
            job = dataclasses.replace(
                self.job("trace", record.config.on_one_device()),
                runner=TRACE_RUNNER,
                trace=str(self.journal.trial_folder(record.number).resolve() / TRACE),
                plan=MeasurePlan(repeats=0, warmup_cap_seconds=self.spec.measure.warmup_cap_seconds),
            )
            outcome = self.runner.run(self.journal.setup_folder(f"trace-{record.number}"), job)
            if isinstance(outcome, Failure):
                self.observer.line(f"No trace of {self.name(record)} ({outcome.kind}: {outcome.message}).")

    def _seconds_on_disk(self) -> float:
        entries = [*self.journal.trials(), *self.journal.confirmations()]
        return sum(max(0.0, e.outcome.finished_at - e.job.asked_at) for e in entries if e.outcome)

    def _reference(self, number: int, stage: str, config: TrialConfig) -> TrialRecord:
        record = self.book.records.get(number)
        if record is None:
            self._start(number, stage, config, {})
        elif record.outcome is None:
            self._resume(number)
        for key, job, outcome in self.runner.wait():
            self._finish(key, job, outcome)
        record = self.book.judged(number)
        self._publish(record)
        return record

    def _resume(self, number: int) -> None:
        entry = self._cut_off.pop(number)
        plan = self.plan(entry.job.config, entry.job.stage)
        self.runner.resume(number, entry.folder, dataclasses.replace(entry.job, plan=plan))
        if number not in self.runner.running:
            outcome = next(e.outcome for e in self.journal.trials() if e.number == number)
            assert outcome is not None
            self._finish(number, entry.job, outcome)

    def _baseline(self) -> None:
        record = self._reference(BASELINE, "baseline", self.spec.baseline_config())
        if record.failure is not None:
            raise NothingFeasibleError(
                f"the baseline did not run ({record.failure.kind}): {record.failure.message}. "
                f"Its output is in {record.folder}/worker.log. Mend it and run the same command."
            )

    def _losses(self) -> None:
        """Runs the baseline's quality pass over several seeds, and cuts the batch range to it."""
        baseline = self.book.records[BASELINE]
        assert baseline.measurement is not None
        asked = self.spec.measure.quality_samples
        about_loss = "val_loss" in self.spec.constraints or any(
            objective.metric == "val_loss" for objective in self.spec.objectives
        )
        if asked == 0 or not about_loss:
            return
        if asked == "auto":
            seconds = QUALITY_SECONDS
            if self.spec.search.minutes:
                seconds = min(seconds, QUALITY_SHARE * self.spec.search.minutes * 60)
            samples = auto_quality_samples(baseline.measurement, baseline.config.batch_size, seconds)
        else:
            samples = int(asked)
        self._cut_batches(samples)
        self.book.quality_samples = samples
        failure: Failure | None = None
        for i in range(NUM_SEEDS):
            config = baseline.config.replace({"seed": baseline.config.seed + i})
            job = self.job("loss of the baseline", config)
            plan = MeasurePlan(repeats=0, quality_samples=samples)
            job = dataclasses.replace(job, runner=QUALITY_RUNNER, plan=plan)
            outcome = self.runner.run(self.journal.setup_folder(f"loss-{i}"), job)
            quality = quality_of(outcome)
            if quality is not None:
                self.book.enter_quality(quality, of_baseline=True)
            elif isinstance(outcome, Failure):
                failure = outcome
        self._publish(self.book.judged(BASELINE))
        yardstick = self.book.yardstick
        if failure and yardstick and not yardstick.losses:
            self.observer.line(
                f"The baseline's loss could not be measured ({failure.kind}: {failure.message}): "
                "no limit relative to it is applied."
            )
        if yardstick and not yardstick.loss_tells:
            self.observer.line(
                "The baseline's loss is no better than a constant predictor's: "
                "the loss cannot tell configurations apart here."
            )

    def _cut_batches(self, samples: int) -> None:
        largest = samples // MIN_STEPS_OF_LARGEST
        parameter = self.spec.space.get("batch_size")
        if parameter is None:
            return
        before = self.spec
        low = getattr(parameter, "low", None) or min(getattr(parameter, "choices", (1,)))
        self.spec = self.book.spec = self.spec.clipped("batch_size", max(largest, low))
        if self.spec != before:
            self.observer.line(
                f"batch_size: at most {max(largest, low)} here, so that the loss after {samples:,} samples "
                f"rests on {MIN_STEPS_OF_LARGEST} steps (measure.quality_samples)."
            )

    def _search(self) -> str:
        """Asks, runs and tells until a budget ends; returns why it ended."""
        self.phase = "searching"
        for record in self.book.finished():
            self.book.tell(record.number)
        searcher = Searcher(self.journal.study, self.spec, self.book.told)
        for number in sorted(self._cut_off):
            self._resume(number)
            self._collect(searcher)
            self._tell(searcher, number)
        self.done = len(self.book.searched())
        reason = ""
        while not reason or self.runner.running:
            while not reason and self.runner.has_room:
                reason = self._ask(searcher)
            self._collect(searcher)
        return reason

    def _ask(self, searcher: Searcher) -> str:
        number = max(self.book.records) + 1
        asked = sum(1 for record in self.book.records.values() if record.stage == "search")
        if asked >= self.spec.search.trials:
            return f"all {asked} trials are done"
        left = self._search_left()
        usual = statistics.median(self._times) if self._times else 0.0
        if left is not None and left < usual / 2:
            return f"the time is up after {asked} trials"
        try:
            params = searcher.ask(number, self.book.taken())
        except SpaceExhaustedError:
            return f"the space is exhausted after {asked} trials"
        self._start(number, "search", self.spec.config(params), params)
        return ""

    def _collect(self, searcher: Searcher) -> None:
        for number, job, outcome in self.runner.wait():
            self._finish(number, job, outcome)
            self._tell(searcher, number)
            self.done = len(self.book.searched())

    def _tell(self, searcher: Searcher, number: int) -> None:
        if number in self.book.told:
            return
        told = self.book.tell(number)
        if told is not None:
            searcher.tell(number, told)


def _is_users(record: TrialRecord) -> bool:
    return record.failure is not None and record.failure.kind in (
        FailureKind.USER_ERROR,
        FailureKind.CRASH,
        FailureKind.NO_RESULT,
    )
