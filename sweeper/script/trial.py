"""Runs a trial of a script: waits until it is steady, times windows, reads its loss, stops it.

start │ steps until steady │ window │ window │ window │ on to the samples of the loss │ asked to stop
──────┼────────────────────┼────────┼────────┼────────┼───────────────────────────────┼──────────────
imports, compile   warm-up   between two reports           (`stop: at_end`: to its end)   SIGINT, ...
"""

from __future__ import annotations

import contextlib
import dataclasses
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from sweeper import inject
from sweeper.core.codec import encode
from sweeper.core.job import Job
from sweeper.core.measurement import (
    Breakdown,
    FailureKind,
    Measurement,
    Quality,
    Report,
    Window,
)
from sweeper.core.progress import Progress, TrialFailedError
from sweeper.core.script import WATCH
from sweeper.errors import UserError
from sweeper.script import failure
from sweeper.script.start import Started, started
from sweeper.script.taken_apart import TakenApart
from sweeper.script.timeline import Stretch, Timeline
from sweeper.system.process import usage
from sweeper.trainer.conditions import Conditions, between, read_conditions
from sweeper.trainer.on_demand import Turn, Turns
from sweeper.trainer.windows import Taken, Windows, collect
from sweeper.worker.deadlines import STALL_RATIO

PATIENCE_SECONDS = 5.0
LISTEN_SECONDS = 0.25
REFILL_SECONDS = 0.1
"""From a script's going on to its next window."""
DIAGNOSIS_SECONDS, DIAGNOSIS_SECONDS_ON_GPU = 20.0, 50.0
"""After the start-up: more than its parts take together. A GPU has two more, and a profiler to start."""


def run(
    job: Job, progress: Progress, turn: Turn | None = None, on_start: Callable[[int], None] | None = None
) -> Measurement:
    """Runs one trial of a script.

    Args:
        turn: What it waits for before each window; meanwhile its processes are stopped.
        on_start: Is called with the script's process.

    Raises:
        TrialFailedError: It cannot be measured, for a known reason.
        UserError: It cannot be started.
    """
    turn = turn or (Turns(Path(job.turns)) if job.turns else None)
    with started(job, progress) as script:
        if on_start is not None:
            on_start(script.process.pid)
        trial = _Trial(job, progress, script, turn)
        found = trial.measured()
        is_watched, evaluation_share = trial.is_watched, trial.evaluation_share
    # In the user's own folder, it would leave what it trained on a batch again and again.
    if job.plan.diagnose and is_watched and job.script is not None and job.script.workdir != "here":
        progress.stage("diagnose")
        with started(job, progress, inject.DIAGNOSE) as script:
            trial = _Trial(job, progress, script)
            most = DIAGNOSIS_SECONDS_ON_GPU if found.trains_on_gpu else DIAGNOSIS_SECONDS
            parts = trial.taken_apart(found.startup_seconds + most)
            diagnosis = parts.diagnosis(trial.folder, on_gpu=found.trains_on_gpu)
            diagnosis = dataclasses.replace(diagnosis, evaluation_share=evaluation_share)
        breakdown = parts.breakdown()
        if breakdown is not None:
            found = dataclasses.replace(found, breakdown=breakdown)
        if breakdown is not None or diagnosis.outside:
            found = dataclasses.replace(found, diagnosis=diagnosis, finished_at=time.time())
    return found


def run_for_loss(job: Job, progress: Progress) -> Report:
    """Runs a script until it has trained on `quality_samples`, for its loss alone.

    Raises:
        TrialFailedError: It exited too early, or reports no loss.
    """
    with started(job, progress) as script:
        trial = _Trial(job, progress, script)
        trial.listen_for_loss()
        found = trial.quality()
        if found is None:
            raise TrialFailedError(
                FailureKind.NO_RESULT,
                f"the script reported no loss after {job.plan.quality_samples:,} samples",
            )
        return Report(values=encode(found), finished_at=time.time())


class _Trial:
    """A running script and its measurement."""

    def __init__(self, job: Job, progress: Progress, started: Started, turn: Turn | None = None) -> None:
        assert job.script is not None
        self._turn, self._resumed_s = turn, 0.0
        self._job, self._script, self._progress = job, job.script, progress
        self._process, self._listener, self._workspace = started.process, started.listener, started.workspace
        self._device, self._kills = started.device, started.oom_kills
        self._last_heard_s = 0.0
        self._is_short = False

    @property
    def _timeline(self) -> Timeline:
        return self._listener.timeline

    def measured(self) -> Measurement:
        plan = self._job.plan
        steady = self._warm_up(plan.warmup_cap_seconds)
        if self._process.status is not None and not self._timeline.stretches:
            self._fail()
        num_warm = len(self._timeline.stretches)
        self._progress.stage("window")
        timed = collect(plan, self._progress, self._take)
        if self._process.status not in (None, 0):
            self._fail()
        self._is_short = not timed.kept
        if self._is_short:
            timed, num_warm, steady = self._single_window()
        self._listener.check_plausible(timed.kept[0].start_s)
        throughput = timed.samples / timed.seconds
        if not timed.screened_out and throughput >= plan.quality_above:
            self._progress.stage("quality")
            self.listen_for_loss()
        return self._measurement(timed, num_warm, steady)

    @property
    def folder(self) -> Path:
        """Where the script runs."""
        return self._workspace.folder

    @property
    def evaluation_share(self) -> float:
        """The share of evaluations in the time since the first step."""
        paused = sum(each.paused_seconds for each in self._timeline.stretches)
        total = paused + sum(each.seconds for each in self._timeline.stretches)
        return paused / total if total else 0.0

    @property
    def is_watched(self) -> bool:
        """Whether torch reports the speed."""
        return self._timeline is self._listener.watched.timeline

    def taken_apart(self, seconds: float) -> TakenApart:
        """Returns what the script's steps consist of, as far as it is reported within `seconds`."""
        found = self._listener.watched.parts
        deadline = time.perf_counter() + seconds
        # A batch trained on again and again may well lead to a loss that is not finite.
        with contextlib.suppress(TrialFailedError, UserError):
            while not found.is_done and time.perf_counter() < deadline and self._listen():
                self._progress.steps.add()
        return found

    def listen_for_loss(self) -> None:
        """Listens until the script has trained on the samples of the loss, or has exited.

        Raises:
            TrialFailedError: It failed.
        """
        wanted = self._job.plan.quality_samples
        # The rounds of a confirmation need only its speed.
        at_end = self._script.stop == "at_end" and self._job.stage != "confirm"
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

    def quality(self) -> Quality | None:
        """Returns the loss after the plan's samples; None if the script does not report one.

        The last validation loss if the script ran to its end. A script stopped earlier may or may
        not have validated, so the training loss after the same number of samples counts.
        """
        plan, losses = self._job.plan, self._listener.losses()
        validation = self._listener.val_losses()
        at_end = self._script.stop == "at_end"
        at = losses.samples if at_end else plan.quality_samples
        if not plan.quality_samples or losses.samples < at:
            return None
        train, val = losses.loss_at(at), validation.val_loss_at(at)
        loss = val if train is None or (at_end and val is not None) else train
        if loss is None:
            return None
        return Quality(
            key=f"{self._job.config.quality_key()}-{plan.quality_samples}",
            samples=round(at),
            seconds=0.0,
            train_loss=loss if train is None else train,
            val_loss=loss,
            of="validation" if loss is val else "training",
        )

    # -- listening -------------------------------------------------------------------------------

    def _listen(self) -> bool:
        """Listens for a moment; returns whether the script is still running.

        Raises:
            TrialFailedError: It has been silent for far longer than usual.
            UserError: Its output is understood, but needs another setting to be of use.
        """
        runs = self._process.listen(LISTEN_SECONDS)
        timeline, now = self._timeline, time.perf_counter()
        if timeline.stretches:
            last_heard = self._listener.last_heard_s
            if last_heard != self._last_heard_s:
                self._last_heard_s = last_heard
                self._progress.steps.add()
            silent, limit = now - max(last_heard, self._resumed_s), self._job.stall_seconds
            # The median comes last: this runs for every message, inside windows too.
            if runs and limit and silent > limit and silent > STALL_RATIO * timeline.usual_gap():
                self._stall(silent)
        elif (
            now - self._process.started_s > PATIENCE_SECONDS
            # torch will report its steps, however late.
            and not self._listener.watched.programs
            and (missing := self._listener.missing_setting())
        ):
            raise UserError(missing)
        elif self._is_not_understood(now):
            raise TrialFailedError(
                FailureKind.NO_RESULT,
                f"nothing was understood in {self._listener.num_lines} lines of output, and no torch was seen"
                f" in its processes after {now - self._process.started_s:.0f} s",
            )
        return runs

    def _is_not_understood(self, now: float) -> bool:
        """Whether the job's patience is over with a script that prints, and in which no torch is watched."""
        patience, listener = self._job.patience_seconds, self._listener
        is_late = patience > 0 and now - self._process.started_s > patience
        return is_late and listener.num_lines > 0 and not listener.watched.programs

    def _stall(self, silent: float) -> NoReturn:
        # The keeper would soon report the same.
        with self._progress.steps.paused():
            self._process.save_stacks()
        raise TrialFailedError(FailureKind.STALLED, f"the script has reported nothing for {silent:.0f} s")

    def _warm_up(self, cap_seconds: float) -> bool:
        """Listens until training is steady or the cap is reached; returns whether it is steady."""
        while self._listen():
            stretches = self._timeline.stretches
            if self._timeline.is_steady():
                return True
            if stretches and stretches[-1].end_s - stretches[0].end_s > cap_seconds:
                return False
        return False

    def _take(self, seconds: float, num_kept: int) -> Taken | None:
        """Returns a window of whole stretches; None if the script exits first, or gets no turn."""
        if self._turn is not None and not self._has_turn(self._turn, num_kept):
            return None
        timeline = self._timeline
        first = len(timeline.stretches)
        before = self._read_conditions()
        while sum(each.seconds for each in timeline.stretches[first:]) < seconds:
            if not self._listen() or timeline is not self._timeline:
                # It has exited, or a more trusted source has started to report.
                if self._process.status is not None:
                    return None
                timeline, first = self._timeline, len(self._timeline.stretches)
        return Taken(_window(timeline.stretches[first:], before, self._read_conditions()))

    def _has_turn(self, turn: Turn, num_kept: int) -> bool:
        """Stops the script until a window is wanted of it; returns whether one is, once it runs again."""
        self._process.pause()
        try:
            with self._progress.steps.paused():
                is_wanted = turn.wait(num_kept)
        finally:
            self._process.resume()
        self._resumed_s = time.perf_counter()
        if not is_wanted:
            return False
        # The stretch that was cut has the pause in it, and queues that filled meanwhile are emptied.
        num_cut, refilled_s = len(self._timeline.stretches) + 1, self._resumed_s + REFILL_SECONDS
        while len(self._timeline.stretches) < num_cut or time.perf_counter() < refilled_s:
            if not self._listen():
                return False
        return True

    def _read_conditions(self) -> Conditions:
        """Returns the current counters; where its training processes are known, they are no helpers.

        The faults of this process, which only listens, do not count.
        """
        found = read_conditions()
        training = [each for each in map(usage, self._listener.watched.trainers) if each is not None]
        own = sum(each.cpu_seconds for each in training)
        return dataclasses.replace(
            found,
            helper_cpu_seconds=found.helper_cpu_seconds - own if training else 0.0,
            minor_faults=sum(each.minor_faults for each in training),
        )

    def _single_window(self) -> tuple[Windows, int, bool]:
        """Returns all but the first stretch as one window: the script exited before a window."""
        among = self._timeline.stretches[1:]
        if not among:
            self._fail()
        conditions = self._read_conditions()
        window = _window(among, conditions, conditions)
        return Windows(kept=(window,), repeated=0, lost=0, phases=()), 1, False

    # -- results ---------------------------------------------------------------------------------

    def _measurement(self, timed: Windows, num_warm: int, steady: bool) -> Measurement:
        timeline, script = self._timeline, self._script
        warm = timeline.stretches[:num_warm]
        throughput = timed.samples / timed.seconds
        began = timeline.began_s or self._process.started_s
        steps = timed.steps or 1
        effective: dict[str, str] = {}
        if changed := self._workspace.overwritten():
            effective["script.workdir"] = f"the script changed {changed[0]} through a link: use `copy`"
        if found := self._listener.disagreement():
            effective["speed"] = found
        watched = self._listener.watched
        effective.update({name: why for name, why in watched.changes.items() if why})
        if watched.failures:
            effective[WATCH] = f"watching it ended ({watched.failures[0]})"
        elif script.watch and not watched.programs:
            effective[WATCH] = "no torch was seen in its processes: the speed is as it reports itself"
        self._process.stop()
        return Measurement(
            throughput=throughput,
            step_ms=1e3 * timed.seconds / steps if timed.steps else 0.0,
            epoch_seconds=script.samples_per_epoch / throughput,
            train_samples=round(script.samples_per_epoch),
            windows=timed.kept,
            breakdown=Breakdown(),
            device=self._device,
            startup_seconds=max(0.0, began - self._process.started_s),
            first_step_seconds=warm[0].seconds if warm else 0.0,
            warmup_seconds=sum(each.seconds for each in warm),
            warmup_steps=sum(each.steps for each in warm),
            steady=steady,
            host_mem_peak_gib=_peak_gib(),
            quality=self.quality(),
            repeated_windows=timed.repeated,
            screened_out=timed.screened_out,
            reported_by=self._listener.source,
            left_out=tuple(self._left_out(timed, num_warm)),
            effective=effective,
            observed=dict(self._listener.watched.facts),
            finished_at=time.time(),
        )

    def _left_out(self, timed: Windows, num_warm: int) -> Iterator[str]:
        stretches = self._timeline.stretches
        warm = stretches[:num_warm]
        if self._is_short:
            seconds = stretches[-1].end_s - stretches[0].end_s
            yield (
                f"all but {seconds:.3g} s: the script ended before a window was full. Let it train for longer"
                " (more steps or epochs): sweeper ends it as soon as it is measured"
            )
        if warm:
            steps = sum(each.steps for each in warm)
            count = f"{steps} steps" if steps else f"{len(warm)} reports"
            yield f"the first {count} as warm-up ({sum(each.seconds for each in warm):.3g} s)"
        end = timed.kept[-1].start_s + timed.kept[-1].seconds
        pauses = [e.paused_seconds for e in stretches[num_warm:] if e.paused_seconds > 0 and e.start_s <= end]
        if pauses:
            yield f"{len(pauses)} pauses for evaluation ({sum(pauses):.3g} s)"

    def _fail(self) -> NoReturn:
        failure.explain(self._process, self._listener, self._job.source, self._kills)


def _window(among: Sequence[Stretch], before: Conditions, after: Conditions) -> Window:
    return between(
        before,
        after,
        among[0].start_s,
        sum(each.seconds for each in among),
        sum(each.steps for each in among),
        round(sum(each.samples for each in among)),
    )


def _peak_gib() -> float:
    """Returns the peak resident set of this process's largest descendant that has exited."""
    return round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1024**3, 4)
