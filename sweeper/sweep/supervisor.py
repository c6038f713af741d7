"""The supervisor of a sweep: its jobs and what becomes of them, its time, and what it tells."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import time
import uuid
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sweeper.analysis.labels import run_name
from sweeper.analysis.trial_table import TrialTable
from sweeper.core.config import TrialConfig
from sweeper.core.crashing import passing
from sweeper.core.job import (
    QUALITY_RUNNER,
    SCRIPT_QUALITY_RUNNER,
    Job,
    MeasurePlan,
    read_outcome,
    write_job,
    write_outcome,
)
from sweeper.core.measurement import Failure, Outcome, Report
from sweeper.core.record import TrialRecord
from sweeper.execution.launcher import Launcher
from sweeper.search import Mirror, NoMirror
from sweeper.spec import SweepSpec
from sweeper.sweep.journal import Entry, Journal
from sweeper.sweep.loading import enter_trials, quality_of
from sweeper.sweep.lock import SweepLock
from sweeper.sweep.observer import Observer, Status
from sweeper.sweep.publishing import Publisher, view_of
from sweeper.sweep.runner import JobRunner, seconds_of
from sweeper.sweep.settling import Settling
from sweeper.sweep.setup import Machine
from sweeper.sweep.stopping import Stopping

QUALITY_CAP_SHARE = 1 / 15
SCREEN_SECONDS = 0.25
LEAST_TIMEOUT_SECONDS = 30.0
LATE_SECONDS = 2.0
"""Beyond the end that it was told to come to."""
RECENT = 100
"""Trials whose seconds are the usual ones."""
STATUS_SECONDS = 0.1
"""Between two words on where the sweep stands: with a thousand workers, trials start more often."""
MOST_NAMED = 8
"""Of the trials that run."""


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
        stopping: Stopping | None = None,
        mirror: Mirror | None = None,
    ) -> None:
        self.journal, self.lock, self.observer = journal, lock, observer
        self.spec, self.machine, self.publisher = spec, machine, publisher
        self.launcher, self.mirror = launcher, mirror or NoMirror()
        self.table = TrialTable(spec)
        settling = Settling([slot.device for slot in machine.slots])
        self.runner = JobRunner(launcher, machine.slots, self.tick, settling.wait, lock.check_now_and_then)
        self.template = template
        self.varied = varied
        self.phase, self.done, self.total = "references", 0, 0
        self.stopping = stopping or Stopping()
        self._began = began
        self._used = 0.0
        self._seconds_of_trials = deque[float](maxlen=RECENT)
        self._told_at = -math.inf
        self._ends_at: float | None = None
        self.cut_off: dict[int, Entry] = {}

    # -- time -------------------------------------------------------------------------------------

    @property
    def seconds_left(self) -> float | None:
        """Seconds of `search.minutes` that are left, confirmation included; None without a limit."""
        now = time.monotonic()
        minutes = self.spec.search.minutes
        left = None if minutes is None else minutes * 60 - self._used - (now - self._began)
        if self._ends_at is None:
            return left
        return min(self._ends_at - now, left if left is not None else self._ends_at)

    @property
    def usual_seconds(self) -> float:
        """The median of the most recent trials' seconds; 0 where there is none."""
        return statistics.median(self._seconds_of_trials or [0.0])

    @property
    def is_hurried(self) -> bool:
        """Whether it was told to leave no more than so many seconds."""
        return self._ends_at is not None

    def hurry(self, seconds: float) -> None:
        """Leaves no more than `seconds` from now on."""
        self._ends_at = time.monotonic() + seconds

    # -- one trial --------------------------------------------------------------------------------

    def plan(self, config: TrialConfig, stage: str) -> MeasurePlan:
        """Returns how a trial is measured; a reference trial has a cap in seconds."""
        measure = self.spec.measure
        samples, above = self.table.quality_plan(config)
        if len(self.spec.objectives) > 1:
            above = 0.0
        searching = stage == "search"
        return MeasurePlan(
            window_seconds=measure.window_seconds,
            repeats=measure.repeats,
            warmup_cap_seconds=measure.warmup_cap_seconds,
            cap_seconds=2 * measure.repeats * measure.window_seconds
            if searching
            else measure.reference_cap_seconds,
            quality_samples=samples,
            quality_above=above,
            quality_cap_seconds=QUALITY_CAP_SHARE * (self.spec.search.minutes or 100.0) * 60,
            quiet_canary_ms=self.quiet_canary_ms(),
            screen_seconds=min(SCREEN_SECONDS, measure.window_seconds / 2),
            screen_above=self.table.screen_above(config) if searching else 0.0,
        )

    def quiet_canary_ms(self) -> float:
        """Returns the canary's time on the quiet machine, by the probe and by all windows so far."""
        known = (self.machine.canary_ms, self.table.quiet_canary_ms())
        return min((ms for ms in known if ms), default=0.0)

    def timeout(self) -> float:
        """Returns the seconds a job may take: its own limit, and hardly more than the sweep has left."""
        limit = self.spec.execution.trial_timeout_minutes * 60
        left = self.seconds_left
        least = LEAST_TIMEOUT_SECONDS if self._ends_at is None else 1.0
        return limit if left is None else min(limit, max(least, left))

    def stage_seconds(self) -> Mapping[str, float]:
        """Returns the limits of a trial's single stages."""
        return {name: 60 * minutes for name, minutes in self.spec.execution.stage_timeout_minutes.items()}

    def job(
        self, stage: str, config: TrialConfig, params: Mapping[str, Any] | None = None, origin: str = ""
    ) -> Job:
        """Returns the job of a new trial."""
        return dataclasses.replace(
            self.template,
            uid=uuid.uuid4().hex,
            config=config,
            stage=stage,
            params=dict(params or {}),
            origin=origin,
            plan=self.plan(config, stage),
            timeout_seconds=self.timeout(),
            # A soak's length is its own.
            stage_seconds={} if stage == "soak" else self.stage_seconds(),
            stall_seconds=self.spec.execution.stall_seconds,
        )

    def start(
        self, number: int, stage: str, config: TrialConfig, params: Mapping[str, Any], origin: str
    ) -> None:
        """Starts a new trial."""
        job = self.job(stage, config, params, origin)
        self.table.enter(self.journal.record(number, job, None))
        self.runner.start(number, self.journal.trial_folder(number), job)
        self.tick()

    def finish(self, number: int, job: Job, outcome: Outcome | Report) -> TrialRecord:
        """Takes note of what became of a trial, and shows it."""
        assert not isinstance(outcome, Report)
        self.lock.check()
        record = self.table.enter(self.journal.record(number, job, outcome))
        passing("entered")
        if job.stage == "search":
            self._seconds_of_trials.append(seconds_of(job, outcome))
        self.publish(record)
        self.observer.trial(record, self.name(record), self.table.x_baseline(record))
        return record

    def pass_over(
        self, number: int, config: TrialConfig, params: Mapping[str, Any], origin: str, objection: Failure
    ) -> None:
        """Enters a configuration that is not run, because of what is expected of it."""
        job = dataclasses.replace(self.job("search", config, params, origin), asked_at=time.time())
        outcome = dataclasses.replace(objection, finished_at=job.asked_at)
        folder = self.journal.trial_folder(number)
        write_job(folder, job)
        write_outcome(folder, outcome)
        record = self.table.enter(self.journal.record(number, job, outcome))
        self.observer.trial(record, self.name(record), None)

    def name(self, record: TrialRecord) -> str:
        """Returns a record's name."""
        return run_name(record.number, record.stage, record.config, self.varied)

    def publish(self, record: TrialRecord) -> None:
        """Shows a record as it stands."""
        self.publisher.publish(record, view_of(record, self.varied, self.table.x_baseline(record)))

    def narrow(self, spec: SweepSpec) -> None:
        """Goes on with a smaller space."""
        self.spec = spec

    def tick(self) -> None:
        """Tells whoever watches where the sweep stands.

        Raises:
            StopAskedError: It was asked to stop.
        """
        self.stopping.check()
        now = time.monotonic()
        if self._ends_at is not None and now > self._ends_at + LATE_SECONDS:
            # What runs ends in time by itself; what waits for a worker would not.
            raise KeyboardInterrupt
        if now - self._told_at < STATUS_SECONDS:
            return
        self._told_at = now
        best = self.table.best()
        running = self.runner.running
        names = [self._doing(key, job) for key, job in itertools.islice(running.items(), MOST_NAMED)]
        others = [f"{len(running) - MOST_NAMED} others"] * (len(running) > MOST_NAMED)
        self.observer.status(
            Status(
                phase=self.phase,
                done=self.done,
                total=self.total,
                best=self.name(best) if best else "",
                best_ratio=self.table.x_baseline(best) if best else None,
                running=(*names, *others),
                seconds_left=self.seconds_left,
            )
        )

    def _doing(self, key: int, job: Job) -> str:
        record = self.table.records.get(job.params.get("trial", key))
        return self.name(record) if record else job.stage

    def load(self) -> None:
        """Reads what is in the folder: records, seconds spent, and trials that were cut off."""
        self.journal.go_on()
        trials = list(self.journal.trials())
        self.cut_off = {entry.number: entry for entry in enter_trials(self.table, self.journal, trials)}
        ended = [e for e in (*trials, *self.journal.rounds("confirm")) if e.outcome]
        self._used = union_seconds((e.job.asked_at, seconds_of(e.job, e.outcome)) for e in ended if e.outcome)

    def resume(self, number: int) -> None:
        """Starts a trial again that was cut off."""
        entry = self.cut_off.pop(number)
        plan = self.plan(entry.job.config, entry.job.stage)
        self.runner.resume(number, entry.folder, dataclasses.replace(entry.job, plan=plan))
        if number not in self.runner.running:
            outcome = read_outcome(entry.folder)
            assert outcome is not None
            self.finish(number, entry.job, outcome)

    def losses_of(self, config: TrialConfig, name: str, seeds: int) -> tuple[list[float], Failure | None]:
        """Returns the losses of `config` over so many seeds, its own first, and why one is missing.

        Each is a job of its own in the folder `setup/<name>-<i>`, unless its loss is known.
        """
        losses, failure = [], None
        for i in range(seeds):
            # Its own seed is the same trial: a script need not have one among its parameters.
            seeded = config.replace({"seed": config.seed + i}) if i else config
            known = self.table.quality_of(seeded)
            if known is None:
                plan = MeasurePlan(repeats=0, quality_samples=self.table.quality_samples)
                runner = SCRIPT_QUALITY_RUNNER if self.spec.command else QUALITY_RUNNER
                job = dataclasses.replace(self.job("loss", seeded), runner=runner, plan=plan)
                folder = self.journal.setup_folder(f"{name}-{i}")
                outcome = self.runner.run(folder, job)
                known = quality_of(outcome, folder)
                failure = outcome if isinstance(outcome, Failure) else failure
            if known is not None:
                self.table.enter_quality(known)
                losses.append(known.val_loss)
        return losses, failure


def union_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """Returns for how long something ran: trials beside one another take their time together.

    Args:
        spans: Beginnings by the wall's clock and seconds, in the order in which they were begun. Where one
            begins before the last did, the clock was set back, and what it overlaps is not known.
    """
    total, last, until = 0.0, -math.inf, -math.inf
    for begin, seconds in spans:
        until = -math.inf if begin < last else until
        total += max(0.0, begin + seconds - max(begin, until))
        last, until = begin, max(until, begin + seconds)
    return total
