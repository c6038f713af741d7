"""Confirms the best few against the baseline: fresh processes, rounds in random order."""

from __future__ import annotations

import dataclasses
import random
import shutil
import statistics
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from sweeper.analysis.confirmation import (
    MIN_ROUNDS,
    Chosen,
    Ratio,
    choose_winner,
    contenders,
    is_enough,
    ratios,
)
from sweeper.analysis.drift import block_of
from sweeper.analysis.finalists import finalists, is_speed
from sweeper.core.job import Job, MeasurePlan
from sweeper.core.launchers import traits
from sweeper.core.measurement import Failure, Measurement
from sweeper.core.record import BASELINE, TrialRecord
from sweeper.spec import SweepSpec
from sweeper.sweep.context import SweepContext
from sweeper.sweep.phases.idle_values import without_idle
from sweeper.sweep.phases.kept_processes import MIN_PROCESSES, is_expensive, kept_round
from sweeper.sweep.phases.ladder import ladder
from sweeper.sweep.phases.losses import losses_over_seeds, num_seeds
from sweeper.sweep.phases.to_loss import to_loss
from sweeper.sweep.stopping import StopAskedError
from sweeper.sweep.store.machine_record import MachineRecord
from sweeper.sweep.store.result import ConfirmationResult
from sweeper.sweep.trial_runner import TrialRunner

QUICK_WARMUP_SECONDS = 5.0
END_SECONDS = 1.0
"""From the last window of a process to the next process."""
HURRY_SECONDS = 18.0
HURRY_WINDOW_SECONDS = 0.5
AMONG = "candidates"
"""Parameter of a confirmation's jobs: the numbers of all candidates."""
MAX_ROUNDS = 4
"""Multiple of `confirm.rounds` that may run while the intervals are wide and there is time."""

Speeds = dict[int, Measurement]


def confirm(context: SweepContext, trials: TrialRunner) -> ConfirmationResult:
    """Runs the rounds that are needed and fit the time.

    A round is one fresh process per candidate and one for the baseline. Rounds already in the folder
    count; an incomplete one is completed.
    """
    spec = context.spec
    chosen: Sequence[TrialRecord] = _finalists(context, trials)
    if not chosen or not spec.confirm.rounds:
        return ConfirmationResult(winner=None)
    begun = _begun(context, trials, chosen)
    if spec.confirm.ladder and not begun:
        chosen = ladder(context, trials, chosen[0], lambda among: _fits(context, trials, among))
        if not chosen:
            return ConfirmationResult(winner=None)
    whole = len(chosen)
    chosen = begun or chosen[: _num_candidates(context, trials, chosen)]
    is_fixed = bool(begun) or spec.confirm.ladder or len(chosen) < whole
    among = [each.number for each in chosen] if is_fixed else ()
    window, wanted = spec.measure.window_seconds, spec.confirm.rounds
    rounds = Rounds(context, trials, "confirm", window, wanted, among)
    rounds.run([record.number for record in chosen], _loss_seconds(trials, spec, chosen[0]))
    unfit = _unfit(context, trials, rounds)
    rounds.record()
    found = rounds.result(unfit)
    speed = next((each for each in found.ratios if each.number == found.winner), None)
    if speed is None:
        return found
    try:
        sooner = to_loss(context, trials, trials.table.records[speed.number], speed)
    except StopAskedError:
        trials.jobs.cancel()
        return found
    return dataclasses.replace(found, to_loss=sooner)


def _num_candidates(context: SweepContext, trials: TrialRunner, chosen: Sequence[TrialRecord]) -> int:
    """Returns how many candidates have time for the fewest rounds: rather few than too few rounds of each."""
    number = len(chosen)
    while number > 1 and not _fits(context, trials, chosen[:number]):
        number -= 1
    return number


def _fits(context: SweepContext, trials: TrialRunner, chosen: Sequence[TrialRecord]) -> bool:
    """Returns whether there is time for the fewest rounds of some candidates."""
    left = trials.budget.seconds_left
    return left is None or confirm_seconds(trials, context.spec, chosen) <= left


def _begun(
    context: SweepContext, trials: TrialRunner, chosen: Sequence[TrialRecord]
) -> Sequence[TrialRecord]:
    """Returns the candidates of a confirmation that continues: those that it began with."""
    first = next((entry.job.params for entry in context.journal.rounds("confirm")), None)
    if first is None:
        return []
    if isinstance(named := first.get(AMONG), str):
        return [trials.table.judged(int(number)) for number in named.split()]
    # Earlier versions wrote only how many, if not all.
    number = first.get("among")
    return chosen[:number] if isinstance(number, int) else chosen


def confirm_seconds(trials: TrialRunner, spec: SweepSpec, candidates: Sequence[TrialRecord]) -> float:
    """Returns about how long the fewest rounds take that confirm `candidates`."""
    runs = (trials.table.records[BASELINE], *candidates)
    return _loss_seconds(trials, spec, candidates[0]) + MIN_ROUNDS * sum(
        _run_seconds(record.measurement, spec) for record in runs if record.measurement
    )


def _loss_seconds(trials: TrialRunner, spec: SweepSpec, record: TrialRecord) -> float:
    """Returns about how long the losses of a winner over the baseline's seeds take."""
    table, measured = trials.table, record.measurement
    has_limit = table.quality_samples and any(each.metric == "val_loss" for each in table.limits())
    if measured is None or not has_limit:
        return 0.0
    seconds = record.quality.seconds if record.quality is not None else 0.0
    if spec.command:
        # It is trained for as long as that takes.
        seconds = table.quality_samples / measured.throughput
    one = measured.startup_seconds + seconds + END_SECONDS
    return one * (num_seeds(spec, table) - 1)


def _run_seconds(measured: Measurement, spec: SweepSpec) -> float:
    window = spec.measure.window_seconds
    warmup = min(QUICK_WARMUP_SECONDS, measured.warmup_seconds)
    return measured.startup_seconds + warmup + window + END_SECONDS


def confirm_in_a_hurry(context: SweepContext, trials: TrialRunner) -> ConfirmationResult:
    """Confirms the best so far within 20 s; a second Ctrl-C leaves it unconfirmed."""
    spec, best = context.spec, _finalists(context, trials)[:1]
    if not best:
        return ConfirmationResult(winner=None)
    winner = best[0].number
    context.observer.line(
        f"Stopping: confirming {context.name(best[0])}, {HURRY_SECONDS + 2:.0f} s at most. "
        "Press Ctrl-C again to stop immediately."
    )
    trials.budget.hurry(HURRY_SECONDS)
    shutil.rmtree(context.journal.rounds_folder("stopped"), ignore_errors=True)
    window = min(HURRY_WINDOW_SECONDS, spec.measure.window_seconds)
    rounds = Rounds(context, trials, "stopped", window, 2 * MIN_ROUNDS)
    try:
        rounds.run([winner])
    except KeyboardInterrupt:
        trials.jobs.cancel()
        return ConfirmationResult(winner=winner)
    found = rounds.result(())
    if len(rounds.speeds) >= MIN_ROUNDS:
        return found
    return dataclasses.replace(found, winner=winner, confirmed=False, ratios=(), rounds=())


def _finalists(context: SweepContext, trials: TrialRunner) -> list[TrialRecord]:
    table, needs_loss = trials.table, bool(trials.table.quality_samples)
    among = table.finished()
    if context.spec.command:
        among = without_idle(among, context.spec)
    return finalists(among, table.records[BASELINE], context.spec, needs_loss=needs_loss)


class Rounds:
    """Rounds of one confirmation, stored in a separate folder.

    Attributes:
        speeds: The measurements, round by round, by trial number.
    """

    def __init__(
        self,
        context: SweepContext,
        trials: TrialRunner,
        place: str,
        window_seconds: float,
        wanted: int,
        among: Sequence[int] = (),
    ) -> None:
        """Looks up the rounds so far.

        Args:
            place: Name of the folder.
            wanted: Rounds to run, and more while the intervals are wide.
            among: The candidates, where they follow from more than the trials.
        """
        self._context, self._trials = context, trials
        self._place, self._window_seconds, self._wanted = place, window_seconds, wanted
        stored = {(e.job.params["round"], e.job.params["trial"]): e for e in context.journal.rounds(place)}
        self._folders = {key: entry.folder for key, entry in stored.items()}
        self._ended = {key for key, entry in stored.items() if entry.outcome is not None}
        self.speeds: list[Speeds] = []
        self._among = among
        self._kept = False
        self._numbers: list[int] = []
        self._machine = MachineRecord(context.home, context.machine.line)
        self._of = f"{context.journal.name}/{place}"
        self._drift = self._machine.drift(before=self._of)
        self.ended = ""

    def throughputs(self) -> list[dict[int, float]]:
        """Returns samples per second, round by round, by trial number."""
        return [{number: found.throughput for number, found in each.items()} for each in self.speeds]

    def run(self, numbers: Sequence[int], reserve: float = 0.0) -> None:
        """Runs rounds of `numbers` and the baseline until they are conclusive, or the time is up.

        Args:
            reserve: Seconds to leave for what comes after.

        Candidates that are clearly slower than the fastest drop out after the configured rounds.
        """
        spec, trials, budget = self._context.spec, self._trials, self._trials.budget
        trials.progress.begin("confirming", self._wanted)
        precision = spec.confirm.precision
        self._numbers = [BASELINE, *numbers]
        records = [trials.table.records[number] for number in self._numbers]
        memory = min(each.memory_gib for each in self._context.machine.devices)
        # A script cannot wait for requests.
        may_keep = traits(spec.execution.launcher).keeps_processes and not spec.command
        self._kept = may_keep and is_expensive(records, self._window_seconds, memory)
        if self._kept:
            self._wanted = max(MIN_PROCESSES, self._wanted // 2)
        among, longest = list(numbers), 0.0
        for index in range(MAX_ROUNDS * self._wanted):
            # Rounds of an earlier process cost nothing, and decide what they decided then.
            is_stored = all((index, number) in self._ended for number in (BASELINE, *among))
            done, left = len(self.speeds), None if is_stored else budget.seconds_left
            if done >= self._wanted and is_enough(self.throughputs(), BASELINE, precision):
                self.ended = "the intervals are narrow enough"
                return
            # Fewer than three rounds prove nothing; in a hurry even that must do.
            if left is not None and left < longest + reserve and (done >= MIN_ROUNDS or budget.is_hurried):
                self.ended = "the time is up"
                return
            # With a ladder most candidates are there to lose: to show that the best needs a change.
            if done >= (MIN_ROUNDS if spec.confirm.ladder else self._wanted):
                among = [n for n in contenders(self.throughputs(), BASELINE) if n in among]
            order = [BASELINE, *among]
            random.Random(spec.search.seed * 1_000_003 + index).shuffle(order)
            try:
                self.speeds.append(self._round(index, order))
            except StopAskedError:
                trials.jobs.cancel()
                if done < MIN_ROUNDS:
                    raise
                self.ended = "it was stopped"
                return
            finally:
                trials.progress.reached(len(self.speeds))
            after = budget.seconds_left
            if left is not None and after is not None:
                longest = max(longest, left - after)
        self.ended = f"after {len(self.speeds)} rounds, the limit, the intervals are still wide"

    def _round(self, index: int, order: Sequence[int]) -> Speeds:
        context, trials = self._context, self._trials
        jobs: dict[int, tuple[Path, Job]] = {}
        for number in order:
            # By round and trial, not by position, which shifts if the candidates change.
            place = context.journal.rounds_folder(self._place) / f"{len(self._folders):04d}"
            folder = self._folders.setdefault((index, number), place)
            jobs[number] = folder, self._job(trials.table.records[number], index)
        if self._kept:
            return kept_round(context, trials, jobs, context.spec.search.seed * 1_000_003 + index)
        outcomes = {number: trials.run(*each) for number, each in jobs.items()}
        for number, outcome in outcomes.items():
            if isinstance(outcome, Failure):
                name = context.name(trials.table.records[number])
                context.observer.line(
                    f"A confirmation run of {name} failed ({outcome.kind}: {outcome.message})."
                )
        return {number: found for number, found in outcomes.items() if isinstance(found, Measurement)}

    def _job(self, record: TrialRecord, index: int) -> Job:
        measure = self._context.spec.measure
        params: dict[str, object] = {"round": index, "trial": record.number}
        if self._among:
            params[AMONG] = " ".join(map(str, self._among))
        job = self._trials.job("confirm", record.config, params)
        plan = MeasurePlan(
            window_seconds=self._window_seconds,
            repeats=1,
            warmup_cap_seconds=min(QUICK_WARMUP_SECONDS, measure.warmup_cap_seconds),
            # Room for one repetition, if it is disturbed.
            cap_seconds=1.5 * self._window_seconds,
            quiet_canary_ms=self._trials.quiet_canary_ms(),
            diagnose=False,
        )
        return dataclasses.replace(job, plan=plan)

    def ratios(self) -> list[Ratio]:
        """Returns each candidate's ratio to the baseline, best first."""
        return ratios(self.throughputs(), BASELINE, self._drift)

    def record(self) -> None:
        """Adds the speeds to what is known of the machine."""
        names = {number: self._context.key_of(self._trials.table.records[number]) for number in self._numbers}
        self._machine.add(block_of(self.throughputs(), names, time.time(), self._of))

    def decision(self, unfit: Collection[int]) -> Chosen:
        """Returns the fastest or its simplest rival, without those that are unfit."""
        records, by_changes = self._trials.table.records, self._context.spec.confirm.ladder
        configs = {number: records[number].config for number in self._numbers}
        speeds = self.throughputs()
        return choose_winner(speeds, BASELINE, configs, unfit, by_changes=by_changes, drift=self._drift)

    def result(self, unfit: Collection[int]) -> ConfirmationResult:
        """Returns the winner, its rivals and all rounds."""
        decision = self.decision(unfit)
        if not is_speed(self._context.spec):
            # The search decided by other objectives; the rounds measure only its speed.
            decision = Chosen(winner=next((n for n in self._numbers[1:] if n not in unfit), None))
        return ConfirmationResult(
            winner=decision.winner,
            confirmed=decision.winner is not None,
            tied=decision.tied,
            unfit=tuple(sorted(unfit)),
            ratios=tuple(self.ratios()),
            rounds=tuple(self.throughputs()),
            rounds_ended=self.ended,
            disturbed={
                n: sum(bool(each[n].contamination) for each in self.speeds if n in each)
                for n in self._numbers
            },
        )


def _unfit(context: SweepContext, trials: TrialRunner, rounds: Rounds) -> set[int]:
    """Returns the candidates whose loss over the baseline's seeds is beyond its limit.

    The search had the loss of a single seed. Candidates are checked from the winner down until one
    holds.
    """
    table = trials.table
    limits = [limit for limit in table.limits() if limit.metric == "val_loss"]
    unfit: set[int] = set()
    if not limits or not table.quality_samples:
        return unfit
    while True:
        winner = rounds.decision(unfit).winner
        if winner is None:
            return unfit
        record = table.records[winner]
        losses, _ = losses_over_seeds(context, trials, record.config, f"loss-{winner}")
        mean = statistics.fmean(losses) if losses else 0.0
        exceeded = next((each for each in limits if losses and each.violation(mean) > 0), None)
        if exceeded is None:
            return unfit
        context.observer.line(
            f"{context.name(record)} is ruled out: its loss over {len(losses)} seeds is "
            f"{mean:.4g}, beyond the limit of {exceeded.bound:.4g}."
        )
        unfit.add(winner)
