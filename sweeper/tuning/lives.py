"""Runs the processes of a tune's race as jobs. The first process of an arm is the arm's trial."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sweeper.core.config import TrialConfig
from sweeper.core.job import (
    OUTCOME,
    RACE_STAGE,
    SEARCH_STAGE,
    Job,
    MeasurePlan,
    read_job,
    read_outcome,
    write_job,
    write_outcome,
)
from sweeper.core.measurement import Breakdown, Failure, FailureKind, Measurement, Report, Window
from sweeper.core.progress import TrialFailedError
from sweeper.core.record import BASELINE
from sweeper.race.log import Ended, Event, Started, Turned, Verified, rounds_of
from sweeper.race.policy import MIN_TURN_SECONDS, Action, Done, Start
from sweeper.race.race import Taken
from sweeper.race.storage import StoredLog
from sweeper.script.run.warm import WarmProcess, read_warm
from sweeper.sweep.phases.lives import JobLives
from sweeper.sweep.start.context import SweepContext
from sweeper.sweep.trial_runner import TrialRunner
from sweeper.telemetry.room import gpu_memory_gib, has_room
from sweeper.tuning.verifier import RaceVerifier

FIRST_RACE = "first"
"""Name of the race in which arms join."""
NUM_ALIVE = 3
"""Processes that live at the same time: the baseline's, the leader's and the challenger's."""
WARMUP_SECONDS = 2.0


class TuneLog(StoredLog):
    """The log of a race in which arms join. Opened again, it counts what was measured; nothing lives."""

    def __init__(self, path: Path, listener: Callable[[], None]) -> None:
        """Reads the events so far, if there are any.

        Args:
            listener: Called after each event.
        """
        self._listener: Callable[[], None] = lambda: None
        super().__init__(path, _end_all)
        self._listener = listener

    def append(self, event: Event) -> None:
        """Adds an event, here and in the file."""
        super().append(event)
        self._listener()


def _end_all(log: Sequence[Event]) -> list[Event]:
    ended = {event.life for event in log if isinstance(event, Ended)}
    alive = [event.life for event in log if isinstance(event, Started) and event.life not in ended]
    return [*log, *(Ended(life, log[-1].at, is_cut_off=True) for life in alive)]


class BaselineRules:
    """Starts the baseline, whose first steps show what may be tried."""

    def __init__(self, log: Sequence[Event]) -> None:
        """Knows what happened before."""
        self._num_before, self._num_rounds = len(log), len(rounds_of(log))

    def next(self, log: Sequence[Event], at: float) -> Action:
        """Returns what to do next."""
        return (
            Done("it runs")
            if len(log) > self._num_before
            else Start(BASELINE, self._num_rounds, MIN_TURN_SECONDS)
        )

    def is_complete(self, log: Sequence[Event]) -> bool:
        """Returns whether no round is under way."""
        return False


class TuneLives(JobLives):
    """The processes of a tune's race.

    Attributes:
        is_crowded: Whether processes have failed because others were there, so that each runs alone.
        memory_gib: Memory of a process in GiB.
        diagnosed_until: Seconds that must be left of the tune for the baseline's steps to be taken apart.
    """

    MAX_TURNS = 100_000

    def __init__(
        self,
        context: SweepContext,
        trials: TrialRunner,
        verifier: RaceVerifier,
        config_of: Callable[[Sequence[str]], TrialConfig],
    ) -> None:
        """Starts nothing yet.

        Args:
            config_of: Returns the configuration of an arm from the words of what it changes.
        """
        folder = context.journal.race_folder(FIRST_RACE)
        super().__init__(context, trials, folder, self._job, NUM_ALIVE, rests=True, verifier=verifier)
        self._config_of = config_of
        self._trial_of: dict[int, int] = {}
        self._ended: dict[int, int] = {}
        self._jobs: dict[int, Job] = {}
        self._faults: dict[int, str] = {}
        self._before = gpu_memory_gib()
        self._starting = -1
        self.memory_gib = 0.0
        self._gpu_gib: dict[str, float] = {}
        self.is_crowded = False
        self.diagnosed_until = 0.0

    def start(self, life: int, start: Start) -> Sequence[Verified]:
        """Starts a process; returns once it is warm and rests, or has ended."""
        journal, table = self._context.journal, self._trials.table
        if read_outcome(journal.trial_folder(start.arm)) is None and start.arm not in self._trial_of.values():
            self._trial_of[life] = start.arm
        self._starting = life
        if life in self._trial_of:
            table.enter(journal.trial_record(start.arm, self._job(start), None))
        verified = super().start(life, start)
        for event in verified:
            self._faults[event.life] = "" if event.is_open else event.fault
            if event.life in self._ended:
                # Another process of the baseline has shown it.
                self._enter(event.life)
            if event.life == life and event.missing:
                self._leave_out(life, start, event)
        if start.arm == BASELINE and life in self._outcomes:
            self._fail(life)
        return verified

    def _leave_out(self, life: int, start: Start, event: Verified) -> None:
        """Stores the configuration of a trial without what is not in effect."""
        if life not in self._trial_of:
            return
        missing = {text.partition(":")[0] for text in event.missing}
        members = [word for word in start.members if word.partition("=")[0] not in missing]
        job = dataclasses.replace(read_job(self._folder_of(life)), config=self._config_of(members))
        write_job(self._folder_of(life), job)
        self._jobs[life] = job
        self._trials.table.enter(self._context.journal.trial_record(start.arm, job, None))

    def _fail(self, life: int) -> None:
        outcome = self._outcomes[life]
        if isinstance(outcome, Failure) and life in self._trial_of:
            # The same command tries again.
            (self._folder_of(life) / OUTCOME).unlink()
            raise TrialFailedError(outcome.kind, outcome.message)

    def has_company(self) -> bool:
        """Returns whether host and GPUs have memory for the other processes."""
        warm, now = read_warm(self._folder_of(self._starting)), gpu_memory_gib()
        if not now and warm is not None and warm.measurement.trains_on_gpu:
            return False
        self.memory_gib = warm.memory_gib if warm is not None else 0.0
        self._gpu_gib = {uuid: used - self._before.get(uuid, 0.0) for uuid, used in now.items()}
        return self.has_room(NUM_ALIVE - 1)

    def has_room(self, count: int) -> bool:
        """Returns whether so many more processes like the latest may live: host and GPUs have the memory."""
        return not self.is_crowded and has_room(count, self.memory_gib, self._gpu_gib, gpu_memory_gib())

    def is_crowded_out(self, life: int) -> bool:
        """Returns whether a process has failed for want of memory or of a port, beside others."""
        is_crowded = super().is_crowded_out(life)
        self.is_crowded |= is_crowded
        return is_crowded

    def end(self, life: int) -> list[Taken] | None:
        """Ends a process, and enters the outcome of a trial that it was."""
        turns = super().end(life)
        if life in self._trial_of:
            self._ended[life] = self._trial_of.pop(life)
            self._enter(life)
        return turns

    def _enter(self, life: int) -> None:
        """Enters the outcome of a trial: a failure, if it trains differently."""
        number, outcome = self._ended[life], self._outcomes.get(life)
        if outcome is None or isinstance(outcome, Report):
            return
        if (fault := self._faults.get(life)) and isinstance(outcome, Measurement):
            message = f"it trains differently: {fault}"
            outcome = Failure(
                kind=FailureKind.DIFFERENT,
                message=message,
                finished_at=outcome.finished_at,
                seconds=outcome.seconds,
            )
            write_outcome(self._context.journal.trial_folder(number), outcome)
        self._trials.finish(number, read_job(self._context.journal.trial_folder(number)), outcome)

    def _may_be_examined(self) -> bool:
        """Returns whether there is time to take the baseline's steps apart."""
        left = self._trials.budget.seconds_left
        return left is None or left > self.diagnosed_until

    def _tell_failure(self, life: int, failure: Failure) -> None:
        """Says nothing: what was tried and failed is said with all else that was tried."""

    def _folder_of(self, life: int) -> Path:
        if life in self._trial_of:
            return self._context.journal.trial_folder(self._trial_of[life])
        return super()._folder_of(life)

    def _job(self, start: Start) -> Job:
        """Returns the job of the process that is about to start."""
        trials, arm = self._trials, start.arm
        config, is_trial = self._config_of(start.members), self._starting in self._trial_of
        stage = RACE_STAGE
        if is_trial:
            stage = "baseline" if arm == BASELINE else SEARCH_STAGE
        params: Mapping[str, object] = {} if is_trial else {"round": start.round, "arm": arm}
        job = trials.job(stage, config, params, "the script as it is" if arm == BASELINE else "the race")
        plan = MeasurePlan(
            window_seconds=start.turn_seconds,
            warmup_cap_seconds=WARMUP_SECONDS,
            quiet_canary_ms=trials.quiet_canary_ms(),
            diagnose=is_trial and arm == BASELINE,
        )
        # It may live as long as the race.
        timeout = max(job.timeout_seconds, trials.budget.seconds_left or 0.0)
        job = dataclasses.replace(job, plan=plan, timeout_seconds=timeout)
        self._jobs[self._starting] = job
        return job


def cut_off_outcome(warm: WarmProcess | None, turns: Sequence[Turned]) -> Measurement | Failure:
    """Returns the outcome of a trial whose process was ended from outside.

    Args:
        warm: What it was before its first turn; None if it was not that far.
        turns: The turns of its arm.
    """
    if warm is None or not turns:
        message = "the tune was ended before it was measured"
        return Failure(kind=FailureKind.LOST, message=message, finished_at=time.time())
    seconds, steps = sum(turn.seconds for turn in turns), sum(turn.steps for turn in turns)
    windows = tuple(
        Window(start_s=0.0, seconds=turn.seconds, steps=turn.steps, samples=round(turn.samples))
        for turn in turns
    )
    return dataclasses.replace(
        warm.measurement,
        throughput=sum(turn.samples for turn in turns) / seconds,
        step_ms=1e3 * seconds / steps if steps else 0.0,
        windows=windows,
        breakdown=Breakdown(),
        finished_at=time.time(),
    )
