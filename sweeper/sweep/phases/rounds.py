"""Runs rounds of the candidates and the baseline, each in a fresh process, in random order."""

from __future__ import annotations

import dataclasses
import math
import random
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
from sweeper.analysis.finalists import is_speed
from sweeper.analysis.rounds import Round
from sweeper.core.job import Job, MeasurePlan
from sweeper.core.measurement import Failure, Measurement
from sweeper.core.record import BASELINE, TrialRecord
from sweeper.results import words
from sweeper.sweep.context import SweepContext
from sweeper.sweep.phases.kept_processes import MIN_PROCESSES, keeps_processes, kept_round
from sweeper.sweep.stopping import StopAskedError
from sweeper.sweep.store.machine_record import MachineRecord
from sweeper.sweep.store.result import ConfirmationResult
from sweeper.sweep.trial_runner import TrialRunner

MIN_WARMUP_SECONDS, MAX_WARMUP_SECONDS = 0.5, 5.0
"""Limits of a process's warm-up in a round, after its first step. In between, it takes as long as the trial's
did: anything longer is the noise of the host."""
SLICE_SECONDS, SLICE_WARMUP_SECONDS = 0.6, 3.0
"""Seconds of a window of scripts that take turns, and of the warm-up before the first one."""
AMONG = "candidates"
"""Parameter of a confirmation's jobs: the numbers of all candidates."""
LATE_SHARE = 0.25
"""Share of a tune's time that its fewest rounds may take beyond it: an answer is worth a short wait."""
MAX_ROUNDS = 4
"""Multiple of `confirm.rounds` that may run while the intervals are wide and there is time."""

Speeds = dict[int, Measurement]


def warmup_seconds(measured: Measurement | None) -> float:
    """Returns the longest warm-up of a trial's processes in a round, after their first step."""
    if measured is None:
        return MAX_WARMUP_SECONDS
    took = measured.warmup_seconds - measured.first_step_seconds
    return max(MIN_WARMUP_SECONDS, min(MAX_WARMUP_SECONDS, took))


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
        early: Sequence[Round] = (),
    ) -> None:
        """Looks up the rounds so far.

        Args:
            place: Name of the folder.
            window_seconds: Length of a window.
            wanted: Number of rounds to run; more run while the intervals are wide.
            among: The candidates' numbers, if they do not follow from the trials alone.
            early: Earlier rounds, each at another time.
        """
        self._context, self._trials = context, trials
        self._place, self._window_seconds, self._wanted = place, window_seconds, wanted
        stored = {(e.job.params["round"], e.job.params["trial"]): e for e in context.journal.rounds(place)}
        self._folders = {key: entry.folder for key, entry in stored.items()}
        self._ended = {key for key, entry in stored.items() if entry.outcome is not None}
        self.speeds: list[Speeds] = []
        self._among, self._early = among, early
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

        Candidates that are clearly slower than the fastest drop out after a few rounds. Losing one by chance
        costs little.

        Args:
            reserve: Seconds to leave for the steps after the rounds.
        """
        spec, trials, budget = self._context.spec, self._trials, self._trials.budget
        trials.progress.begin("confirming", self._wanted)
        precision = spec.confirm.precision
        self._numbers = [BASELINE, *numbers]
        records = [trials.table.records[number] for number in self._numbers]
        self._kept = keeps_processes(self._context, trials.table, records, self._window_seconds)
        if self._kept and not spec.traits.takes_turns:
            self._wanted = max(MIN_PROCESSES, self._wanted // 2)
        among, longest = list(numbers), 0.0
        for index in range(MAX_ROUNDS * self._wanted):
            if len(self.speeds) >= MIN_ROUNDS:
                among = [n for n in contenders(self.throughputs(), BASELINE) if n in among]
            # Rounds of an earlier process take no time now, and lead to the same decisions as then.
            is_stored = all((index, number) in self._ended for number in (BASELINE, *among))
            done, left = len(self.speeds), None if is_stored else budget.seconds_left
            if done >= self._wanted and is_enough(self.throughputs(), BASELINE, precision, self._drift):
                self.ended = words.NARROW_ENOUGH
                return
            # Fewer than three rounds prove nothing, but in a hurry they must be enough.
            may_end = done >= MIN_ROUNDS or budget.is_hurried or self._is_late(left, longest)
            if left is not None and left < longest + reserve and may_end:
                self.ended = "the time is up"
                return
            try:
                self.run_one(index, [BASELINE, *among])
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
        self.ended = words.still_wide(len(self.speeds))

    def _is_late(self, left: float | None, longest: float) -> bool:
        """Returns whether the fewest rounds would take a tune far beyond its time."""
        spec, done = self._context.spec, len(self.speeds)
        if left is None or not (spec.traits.is_of_changes and done):
            return False
        allowed = LATE_SHARE * 60 * (spec.search.minutes or 0.0)
        return left + allowed < longest * (MIN_ROUNDS - done)

    def run_one(self, index: int, numbers: Sequence[int]) -> None:
        """Runs one round of `numbers`."""
        order = list(numbers)
        random.Random(self._context.spec.search.seed * 1_000_003 + index).shuffle(order)
        self.speeds.append(self._round(index, order))

    def _round(self, index: int, order: Sequence[int]) -> Speeds:
        context, trials = self._context, self._trials
        jobs: dict[int, tuple[Path, Job]] = {}
        for number in order:
            # The key is round and trial, not the position, which shifts if the candidates change.
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
        is_in_turns = self._kept and self._context.spec.traits.takes_turns
        plan = MeasurePlan(
            window_seconds=min(SLICE_SECONDS, self._window_seconds) if is_in_turns else self._window_seconds,
            repeats=1,
            warmup_cap_seconds=min(
                SLICE_WARMUP_SECONDS if is_in_turns else math.inf,
                measure.warmup_cap_seconds,
                warmup_seconds(record.measurement),
            ),
            # Time to repeat the window once if it is disturbed.
            cap_seconds=1.5 * self._window_seconds,
            quiet_canary_ms=self._trials.quiet_canary_ms(),
            diagnose=False,
        )
        return dataclasses.replace(job, plan=plan)

    def ratios(self) -> list[Ratio]:
        """Returns each candidate's ratio to the baseline, best first."""
        return ratios(self.throughputs(), BASELINE, self._drift, self._early)

    def record(self) -> None:
        """Adds the speeds to the machine's record."""
        records = self._trials.table.records
        names = {number: self._context.key_of(records[number]) for number in self._numbers}
        self._machine.add(block_of(self.throughputs(), names, time.time(), self._of))

    def decision(self, unfit: Collection[int]) -> Chosen:
        """Returns the fastest candidate or its simplest rival, without those that are unfit."""
        records, simplest = self._trials.table.records, self._context.spec.traits.simplest_is
        by_changes = simplest == "fewest changes"
        configs = {number: records[number].config for number in self._numbers}
        speeds = self.throughputs()
        return choose_winner(
            speeds, BASELINE, configs, unfit, by_changes=by_changes, drift=self._drift, early=self._early
        )

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
            early=tuple(self._early),
            rounds_ended=self.ended,
            disturbed={
                n: sum(bool(each[n].contamination) for each in self.speeds if n in each)
                for n in self._numbers
            },
        )
