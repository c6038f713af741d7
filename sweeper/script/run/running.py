"""Measures a script while it runs: its warm-up, its windows or turns, its record, its loss.

start │ steps until steady │ window │ window │ window │ on to the samples of the loss │ asked to stop
──────┼────────────────────┼────────┼────────┼────────┼───────────────────────────────┼──────────────
imports, compile   warm-up   between two reports           (`stop: at_end`: to its end)   SIGINT, ...
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from sweeper.core.job import RACE_STAGE, Job
from sweeper.core.measurement import Breakdown, FailureKind, Measurement, RunParts, Window
from sweeper.core.progress import Progress, TrialFailedError
from sweeper.core.units import GIB
from sweeper.core.workload import script_of
from sweeper.errors import UserError
from sweeper.race.policy import MIN_STEPS
from sweeper.script.run import failure
from sweeper.script.run.output import Listener
from sweeper.script.run.result import (
    exclusions,
    ineffective_settings,
    peak_gib,
    quality,
    run_parts,
    window_of,
)
from sweeper.script.run.start import RunningScript
from sweeper.script.run.taken_apart import StepAnalysis
from sweeper.script.run.timeline import Stretch, Timeline
from sweeper.script.run.warm import WarmProcess, write_warm
from sweeper.script.run.watched import WatchedTraining
from sweeper.system.process import proportional_bytes, tree, usage
from sweeper.trainer.on_demand import WindowRequests
from sweeper.trainer.timing.conditions import Conditions, read_conditions, window_between
from sweeper.trainer.timing.windows import TimedWindow, WindowSet, collect_windows
from sweeper.worker.deadlines import STALL_RATIO

PATIENCE_SECONDS = 5.0
LISTEN_SECONDS = 0.25
MAX_STAGES = 3
"""Number of stages of a training after which its speed is taken as it is."""
SAME_SPEED = 1.1
"""Stages of training whose speeds differ by less may be measured together."""
REFILL_SECONDS = 0.1
"""Seconds between a script's resumption and its next window."""
MIN_PAUSE_SECONDS, RARE_SECONDS = 0.5, 5.0
"""Seconds of a pause after which a turn begins anew, such as an evaluation, and of training before it."""
SILENT_SECONDS = 1.0
"""Seconds of silence after which a script is asked whether its turn is still wanted."""
RECORD_ONLY = "the script trained for no longer than its record"
"""Message of the failure of a process that was recorded, and has ended by itself before it could be timed."""


class RunningTrial:
    """A running script and its measurement."""

    def __init__(
        self, job: Job, progress: Progress, started: RunningScript, turn: WindowRequests | None = None
    ) -> None:
        self._turn, self._resumed_s = turn, 0.0
        self._job, self._script, self._progress = job, script_of(job), progress
        self._process, self._listener, self._sandbox = started.process, started.listener, started.sandbox
        self._device, self._kills = started.device, started.oom_kills
        self._last_heard_s = 0.0
        self._num_earlier = self._num_recorded = 0
        self._is_short = False
        self._recorded: tuple[float, Conditions, Mapping[str, float]] | None = None

    @property
    def _timeline(self) -> Timeline:
        return self._listener.timeline

    def await_record(self) -> None:
        """Listens until the record of the first steps is complete, or the script has exited.

        Raises:
            TrialFailedError: It has failed, or has trained for no longer than its record.
        """
        watched, limit = self._listener.watched, self._job.recording and self._job.recording.limit_seconds
        while watched.num_recorded is None and not watched.failures and self._listen():
            if limit and time.perf_counter() - self._process.started_s > limit:
                why = f"its first steps took longer than {limit:.0f} s{watched.doubt}"
                raise TrialFailedError(FailureKind.TIMEOUT, why)
        if self._process.status not in (None, 0):
            self._fail()
        if watched.failures:
            why = f"its training cannot be watched: {watched.failures[0]}"
            raise TrialFailedError(FailureKind.NO_RESULT, why)
        self._num_recorded = len(self._timeline.stretches)
        self._recorded = time.perf_counter(), self._read_conditions(), watched.between
        self._write_warm()

    def _write_warm(self, foreign_cores: float = 0.0) -> None:
        """Writes what is known so far for the race that this process is in."""
        runs = self._process.status is None
        warm = WarmProcess(
            measurement=self._warm_measurement(len(self._timeline.stretches)),
            changes=dict(self._listener.watched.changes),
            memory_gib=sum(map(proportional_bytes, tree(self._process.pid))) / GIB if runs else 0.0,
            foreign_cores=foreign_cores,
        )
        write_warm(Path(self._job.folder), warm)

    def measure(self) -> Measurement:
        """Returns its speed, once it has been steady for the plan's windows or turns, and its loss.

        It goes on running.

        Raises:
            TrialFailedError: It cannot be measured, for a known reason.
        """
        plan = self._job.plan
        steady, num_warm, timed = self._windows(self._num_recorded)
        for _ in range(MAX_STAGES):
            if not self._mixes_stages(timed, num_warm):
                break
            self._num_earlier = self._timeline.num_earlier
            self._progress.stage("warmup")
            steady, num_warm, timed = self._windows(self._num_earlier)
        if self._process.status not in (None, 0):
            self._fail()
        self._is_short = not timed.kept
        if self._is_short:
            timed, num_warm, steady = self._single_window()
        self._listener.check_plausible(timed.kept[0].start_s)
        throughput = timed.samples / timed.seconds
        if not timed.is_screened and throughput >= plan.quality_above:
            self._progress.stage("quality")
            self.listen_for_loss()
        return self._measurement(timed, num_warm, steady)

    def _windows(self, since: int = 0) -> tuple[bool, int, WindowSet]:
        """Measures once training is steady after some stretches.

        Returns:
            Whether it is steady, the number of stretches before the windows, and the windows.
        """
        plan = self._job.plan
        steady = self._warm_up(plan.warmup_cap_seconds, since)
        if self._process.status is not None and not self._timeline.stretches:
            self._fail()
        num_warm = len(self._timeline.stretches)
        if self._recorded is not None and self._process.status is None:
            began_s, before, _ = self._recorded
            warm = window_between(before, self._read_conditions(), 0.0, time.perf_counter() - began_s, 0, 0)
            self._write_warm(foreign_cores=warm.foreign_cpu_seconds / warm.seconds)
        self._progress.stage("window")
        timed = collect_windows(plan, self._progress, self._take, is_in_turns=self._turn is not None)
        return steady, num_warm, timed

    def _mixes_stages(self, timed: WindowSet, num_warm: int) -> bool:
        """Returns whether a stage of another speed began after the warm-up, and can still be measured.

        Versions that take turns would lose their common moments.
        """
        timeline = self._timeline
        if self._turn is not None or not timed.kept or timeline.num_earlier <= num_warm:
            return False
        while timeline.num_earlier >= len(timeline.stretches):
            if not self._listen():
                return False
        before, after = (
            timeline.speed(num_warm, timeline.num_earlier - 1),
            timeline.speed(timeline.num_earlier),
        )
        is_same = not before or 1 / SAME_SPEED < after / before < SAME_SPEED
        return self._process.status is None and not is_same

    @property
    def has_ended(self) -> bool:
        """Whether the script has ended without an error."""
        return self._process.status == 0

    @property
    def listener(self) -> Listener:
        """The reports of the script."""
        return self._listener

    @property
    def earlier(self) -> Sequence[Stretch]:
        """The stretches of earlier stages of the training, which do not count."""
        return self._timeline.stretches[: self._num_earlier]

    @property
    def run_parts(self) -> RunParts | None:
        """What the script has done so far; None where torch does not report it."""
        if not self.is_watched:
            return None
        recorded = (self._num_recorded, self._recorded[2] if self._recorded else {})
        return run_parts(self._timeline, self._listener.watched.between, self._process.started_s, recorded)

    @property
    def is_watched(self) -> bool:
        """Whether torch reports the speed."""
        return self._timeline is self._listener.watched.timeline

    @property
    def parts(self) -> StepAnalysis:
        """The parts of its steps, as far as they were taken apart."""
        return self._listener.watched.parts

    def take_apart(self, seconds: float, from_step: int = 0) -> None:
        """Takes its steps apart, which changes what it trains on, and listens for `seconds` of training.

        Args:
            from_step: Number of steps after which it begins: an earlier stage of the training does not count.
        """
        parts, watched = self.parts, self._listener.watched
        deadline, is_asked = time.perf_counter() + seconds, False
        # Training on one batch again and again may well lead to a loss that is not finite.
        with contextlib.suppress(TrialFailedError, UserError):
            while not parts.is_done and time.perf_counter() < deadline:
                if not is_asked and watched.steps >= from_step:
                    self._process.take_apart()
                    is_asked = True
                if not self._listen():
                    break
                self._progress.steps.add()
                if watched.is_pausing and not parts.parts and self._turn is None:
                    # It is still in an evaluation.
                    deadline = time.perf_counter() + seconds

    def listen_to_end(self, read: Callable[[str], None]) -> None:
        """Listens until the script has exited.

        Args:
            read: Called with each line of its output.

        Raises:
            TrialFailedError: It failed.
        """
        num_read, runs = 0, True
        while runs:
            runs = self._listen()
            num_new = min(self._listener.num_lines - num_read, len(self._listener.last_lines))
            num_read = self._listener.num_lines
            for line in list(self._listener.last_lines)[-num_new:] if num_new else ():
                read(line)
        if self._process.status != 0:
            self._fail()

    def listen_for_loss(self) -> None:
        """Listens until the script has trained on the samples of the loss, or has exited.

        Raises:
            TrialFailedError: It failed.
        """
        wanted = self._job.plan.quality_samples
        # The rounds of a confirmation need only the speed.
        at_end = self._script.stop == "at_end" and self._job.stage != RACE_STAGE
        while at_end or (wanted and not self._has_loss(wanted)):
            if not self._listen():
                if self._process.status != 0:
                    self._fail()
                return

    def _has_loss(self, samples: int) -> bool:
        losses = self._listener.losses()
        if losses.samples < samples:
            return False
        # If a script reports validation losses only, wait for the next one.
        return bool(losses.losses) or not losses.val_losses or losses.val_losses[-1][0] >= samples

    # -- listening -------------------------------------------------------------------------------

    def _listen(self) -> bool:
        """Listens for a moment; returns whether the script is still running.

        Raises:
            TrialFailedError: It has been silent for far longer than usual, or its output is not understood.
            UserError: Its output is understood, but cannot be used without a setting that is missing.
        """
        runs = self._process.listen(LISTEN_SECONDS)
        timeline, now = self._timeline, time.perf_counter()
        if timeline.stretches:
            last_heard = self._listener.last_heard_s
            if last_heard != self._last_heard_s:
                self._last_heard_s = last_heard
                self._progress.steps.add()
            silent, limit = now - max(last_heard, self._resumed_s), self._job.stall_seconds
            # The median comes last, since this runs for every message, inside windows too.
            if runs and limit and silent > limit and silent > STALL_RATIO * timeline.usual_gap():
                self._stall(silent)
        elif (
            now - self._process.started_s > PATIENCE_SECONDS
            # torch will report its steps, however late.
            and not self._listener.watched.programs
            and (missing := self._listener.missing_setting())
        ):
            raise UserError(missing)
        elif now - self._process.started_s > self._job.timeout_seconds:
            # Outside of a sweep there is no keeper.
            raise TrialFailedError(
                FailureKind.TIMEOUT, f"the script has taken no step in {now - self._process.started_s:.0f} s"
            )
        elif self._is_not_understood(now):
            raise TrialFailedError(
                FailureKind.NO_RESULT,
                f"no speed was found in {self._listener.num_lines} lines of output, and no torch was seen in"
                f" its processes after {now - self._process.started_s:.0f} s",
            )
        return runs

    def _is_not_understood(self, now: float) -> bool:
        """Returns whether a script has printed for longer than the job's patience, but shown no torch."""
        patience, listener = self._job.patience_seconds, self._listener
        is_late = patience > 0 and now - self._process.started_s > patience
        return is_late and listener.num_lines > 0 and not listener.watched.programs

    def _stall(self, silent: float) -> NoReturn:
        # The keeper would soon report the same.
        with self._progress.steps.paused():
            self._process.save_stacks()
        raise TrialFailedError(FailureKind.STALLED, f"the script has reported nothing for {silent:.0f} s")

    def _warm_up(self, cap_seconds: float, since: int) -> bool:
        """Listens until training is steady or the cap is reached; returns whether it is steady.

        Args:
            since: Number of stretches that do not count.
        """
        while self._listen():
            stretches = self._timeline.stretches[since:]
            if self._timeline.is_steady(since):
                return True
            if stretches and stretches[-1].end_s - stretches[0].end_s > cap_seconds:
                return False
        return False

    def _take(self, seconds: float, kept: Sequence[Window]) -> TimedWindow | None:
        """Returns a window of whole stretches; None if the script exits first or gets no turn.

        A turn in which a rare pause ends begins anew: workers that start again would be part of one arm's
        turn, and not of another's. Where they are frequent, they are part of the speed.
        """
        if self._turn is not None and not self._has_turn(self._turn, kept):
            return None
        timeline = self._timeline
        first = len(timeline.stretches)
        num_seen, before = first, self._read_conditions()
        while not self._is_whole(timeline.stretches[first:], seconds):
            if not self._listen() or timeline is not self._timeline:
                # It has exited, or a more trusted source has started to report.
                if self._process.status is not None:
                    return None
                timeline, first = self._timeline, len(self._timeline.stretches)
                num_seen = first
            if self._turn is not None:
                if self._is_withdrawn(self._turn):
                    return None
                if _has_rare_pause(timeline.stretches, num_seen):
                    before, first = self._read_conditions(), len(timeline.stretches)
                num_seen = len(timeline.stretches)
        return TimedWindow(window_of(timeline.stretches[first:], before, self._read_conditions()))

    def _is_withdrawn(self, turn: WindowRequests) -> bool:
        """Returns whether a turn is not wanted any more, while the script evaluates or is silent."""
        silent = time.perf_counter() - max(self._last_heard_s, self._resumed_s)
        return (self._listener.is_pausing or silent > SILENT_SECONDS) and turn.is_withdrawn

    def _is_whole(self, stretches: Sequence[Stretch], seconds: float) -> bool:
        """Returns whether stretches are enough for a window: a turn has a few steps, however long."""
        if sum(stretch.seconds for stretch in stretches) < seconds:
            return False
        steps = sum(stretch.steps for stretch in stretches)
        return self._turn is None or not steps or steps >= MIN_STEPS

    def _has_turn(self, turn: WindowRequests, kept: Sequence[Window]) -> bool:
        """Pauses the script until its next window is wanted; returns whether one is, once it runs again."""
        is_between_steps = self._process.pause()
        try:
            with self._progress.steps.paused():
                is_wanted = turn.wait(kept)
        finally:
            self._process.resume()
        self._resumed_s = time.perf_counter()
        # What ran during other versions' turns is no neighbour of this window.
        self._progress.stage("window")
        if not is_wanted:
            return False
        # An interrupted stretch includes the pause, and queues that filled meanwhile must empty first.
        num_cut = len(self._timeline.stretches) + (not (is_between_steps and self.is_watched))
        refilled_s = self._resumed_s + REFILL_SECONDS
        while len(self._timeline.stretches) < num_cut or time.perf_counter() < refilled_s:
            if not self._listen() or self._is_withdrawn(turn):
                return False
        return True

    def _read_conditions(self) -> Conditions:
        """Returns the current counters; known training processes do not count as helpers.

        The page faults of this process, which only listens, do not count.
        """
        conditions = read_conditions()
        trainers = [used for used in map(usage, self._listener.watched.trainers) if used is not None]
        cpu_seconds = sum(used.cpu_seconds for used in trainers)
        return dataclasses.replace(
            conditions,
            helper_cpu_seconds=conditions.helper_cpu_seconds - cpu_seconds if trainers else 0.0,
            minor_faults=sum(used.minor_faults for used in trainers),
        )

    def _single_window(self) -> tuple[WindowSet, int, bool]:
        """Returns all but the first stretch as one window, since the script exited before one was full."""
        stretches = self._timeline.stretches[max(1, self._num_recorded) :]
        if not stretches and self._num_recorded:
            raise TrialFailedError(FailureKind.NO_RESULT, RECORD_ONLY)
        if not stretches:
            self._fail()
        conditions = self._read_conditions()
        window = window_of(stretches, conditions, conditions)
        return WindowSet(kept=(window,), repeated=0, lost=0, phases=()), 1, False

    # -- results ---------------------------------------------------------------------------------

    def _measurement(self, timed: WindowSet, num_warm: int, steady: bool) -> Measurement:
        measurement = self._warm_measurement(num_warm)
        throughput = timed.samples / timed.seconds
        parts = self._num_recorded, self._num_earlier, num_warm
        return dataclasses.replace(
            measurement,
            throughput=throughput,
            step_ms=1e3 * timed.seconds / timed.steps if timed.steps else 0.0,
            epoch_seconds=self._script.samples_per_epoch / throughput,
            windows=timed.kept,
            breakdown=Breakdown(),
            steady=steady,
            host_mem_peak_gib=peak_gib(tree(self._process.pid)),
            quality=quality(self._job, self._listener),
            repeated_windows=timed.repeated,
            is_screened=timed.is_screened,
            exclusions=tuple(exclusions(self._timeline.stretches, timed, *parts, is_short=self._is_short)),
            finished_at=time.time(),
        )

    def _warm_measurement(self, num_warm: int) -> Measurement:
        """Returns what is known before the first window: the speed is that of the warm-up."""
        timeline, script = self._timeline, self._script
        first, warm = timeline.stretches[:1], timeline.stretches[self._num_recorded : num_warm]
        throughput = timeline.speed(self._num_recorded, num_warm)
        began = timeline.began_s or self._process.started_s
        seconds, steps = sum(stretch.seconds for stretch in warm), sum(stretch.steps for stretch in warm)
        breakdown = _rough_breakdown(self._listener.watched)
        return Measurement(
            throughput=throughput,
            step_ms=1e3 * seconds / steps if steps else 0.0,
            epoch_seconds=script.samples_per_epoch / throughput if throughput else 0.0,
            train_samples=round(script.samples_per_epoch),
            windows=(),
            breakdown=breakdown,
            device=self._device,
            startup_seconds=max(0.0, began - self._process.started_s),
            first_step_seconds=first[0].seconds if first else 0.0,
            warmup_seconds=seconds + (first[0].seconds if first and self._num_recorded else 0.0),
            warmup_steps=steps,
            reported_by=self._listener.source,
            run=self.run_parts,
            effective=ineffective_settings(script, self._listener, self._sandbox),
            observed=self._sandbox.relative_facts(self._listener.watched.facts),
            versions=self._listener.watched.versions,
        )

    def _fail(self) -> NoReturn:
        refused = self._sandbox.describe_refused()
        failure.explain(self._process, self._listener, self._job.reporter, self._kills, refused)


def _has_rare_pause(stretches: Sequence[Stretch], since: int) -> bool:
    """Returns whether a pause ended in one of the latest stretches, after long training without any."""
    latest = next((n for n in range(since, len(stretches)) if _follows_a_pause(stretches[n])), 0)
    seconds = 0.0
    for stretch in stretches[latest - 1 :: -1] if latest else ():
        seconds += stretch.seconds
        if seconds >= RARE_SECONDS:
            return True
        if _follows_a_pause(stretch):
            break
    return False


def _follows_a_pause(stretch: Stretch) -> bool:
    return stretch.paused_seconds >= MIN_PAUSE_SECONDS


def _rough_breakdown(watched: WatchedTraining) -> Breakdown:
    """Returns the parts of a step as the host sees them, without taking it apart."""
    if not watched.shares:
        return Breakdown()
    steps, seconds, data, optimizer = watched.shares
    rest = max(0.0, seconds - data - optimizer)
    return Breakdown(data_s=data / steps, forward_s=rest / steps, optimizer_s=optimizer / steps)
