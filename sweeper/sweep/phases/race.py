"""Races the best trials of a sweep against its baseline."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Collection, Mapping, Sequence

from sweeper.core.job import RACE_STAGE, Job, MeasurePlan, read_outcome
from sweeper.core.measurement import Measurement
from sweeper.core.record import BASELINE, TrialRecord
from sweeper.race import race
from sweeper.race.drift import block_of
from sweeper.race.log import Round, Started, Verified, comparable_rounds, rounds_of
from sweeper.race.policy import (
    CLEAR,
    LONG,
    MAX_TURN_SECONDS,
    MAX_TURNS,
    MIN_STEPS,
    MIN_TURN_SECONDS,
    Policy,
    Start,
)
from sweeper.race.scores import Score, scores
from sweeper.race.storage import StoredLog
from sweeper.results import words
from sweeper.results.numbers.confirmation import Ratio, WinnerChoice, choose_winner, ratios
from sweeper.results.numbers.confirmation_result import ConfirmationResult
from sweeper.results.numbers.finalists import is_speed
from sweeper.sweep.folder.journal import DAMAGED_RACE
from sweeper.sweep.folder.machine_record import MachineRecord
from sweeper.sweep.phases.lives import JobLives, Verifier, can_rest
from sweeper.sweep.start.context import SweepContext
from sweeper.sweep.stopping import StopAskedError
from sweeper.sweep.trial_runner import TrialRunner
from sweeper.system.files import reading

MIN_WARMUP_SECONDS, MAX_WARMUP_SECONDS = 0.5, 5.0
"""Limits of a process's warm-up in a race, after its first step. In between, it takes as long as the trial's
did: anything longer is the noise of the host."""
SCRIPT_WARMUP_SECONDS = 3.0
"""Seconds of the warm-up of scripts that take turns."""
ARMS = "arms"
"""Parameter of a race's jobs: the numbers of all candidates."""
MAX_ROUNDS = 4
"""Multiple of `confirm.rounds` that may run while the intervals are wide and there is time."""


def warmup_seconds(measured: Measurement | None) -> float:
    """Returns the longest warm-up of a trial's processes in a race, after their first step."""
    if measured is None:
        return MAX_WARMUP_SECONDS
    took = measured.warmup_seconds - measured.first_step_seconds
    return max(MIN_WARMUP_SECONDS, min(MAX_WARMUP_SECONDS, took))


def turn_limits(records: Sequence[TrialRecord], window_seconds: float, *, rests: bool) -> tuple[float, float]:
    """Returns the seconds of the shortest and of the longest turn."""
    if not rests:
        return window_seconds, window_seconds
    steps = [record.measurement.step_ms / 1000 for record in records if record.measurement is not None]
    shortest = max(min(MIN_TURN_SECONDS, window_seconds), MIN_STEPS * max(steps, default=0.0))
    return shortest, max(shortest, min(MAX_TURN_SECONDS, window_seconds))


class SweepRace:
    """A race between trials of a sweep and its baseline, whose log and processes are in a folder.

    A race that was cut off goes on: its complete rounds count.

    Attributes:
        ended: Why it has ended, in words.
    """

    def __init__(
        self,
        context: SweepContext,
        trials: TrialRunner,
        name: str,
        window_seconds: float,
        early: Sequence[Round] = (),
        verifier: Verifier | None = None,
        rests: bool | None = None,
        before: Sequence[Round] = (),
    ) -> None:
        """Looks up the rounds so far.

        Args:
            name: Name of the race.
            window_seconds: Length of a window, and of the longest turn.
            early: Earlier rounds of the sweep, far apart in time.
            verifier: Compares the first steps of its processes; None if they are not recorded.
            rests: Whether its processes take turns; by default, where that is of use and there is room.
            before: Rounds of a race before it, which help to tell the candidates apart.
        """
        self._verifier, self._may_rest = verifier, rests
        self._context, self._trials = context, trials
        self._window_seconds = window_seconds
        self._early, self._before = early, before
        self._folder = context.journal.race_folder(name)
        path = context.journal.race_log(name)
        with reading(path, DAMAGED_RACE):
            self._log = StoredLog(path)
        self._scores: tuple[int, Sequence[Score]] = (-1, ())
        self._arms: tuple[int, ...] = (BASELINE,)
        self._rests = False
        self._machine = MachineRecord(context.home, context.machine.line)
        self._of = f"{context.journal.name}/{name}"
        self._drift = self._machine.drift(before=self._of)
        self.ended = ""

    @property
    def verified(self) -> Mapping[int, Verified]:
        """What is known last about the training of each arm, but for later processes that have failed."""
        arms = {event.life: event.arm for event in self._log if isinstance(event, Started)}
        events: dict[int, Verified] = {}
        for event in self._log:
            if isinstance(event, Verified) and (arms[event.life] not in events or not event.is_failure):
                events[arms[event.life]] = event
        return events

    @property
    def rounds(self) -> list[Round]:
        """The rounds so far that compare an arm with the baseline."""
        return comparable_rounds(self._log)

    def run(self, numbers: Sequence[int], min_rounds: int, max_rounds: int, reserve: float = 0.0) -> None:
        """Races `numbers` and the baseline until the answer is clear, or the time is up.

        Args:
            min_rounds: Fewest rounds, unless the time is up; `max_rounds` is the most.
            reserve: Seconds to leave for the steps after the race.

        Raises:
            StopAskedError: The user has asked the sweep to end, before a candidate could be compared.
        """
        context, trials, spec = self._context, self._trials, self._context.spec
        self._arms = (BASELINE, *numbers)
        records = [trials.table.records[number] for number in self._arms]
        self._rests = (
            can_rest(context, trials.table, records, self._window_seconds)
            if self._may_rest is None
            else self._may_rest
        )
        left, at = trials.budget.seconds_left, self._log[-1].at if self._log else 0.0
        shortest, longest = turn_limits(records, self._window_seconds, rests=self._rests)
        policy = Policy(
            arms=self._arms,
            seconds=math.inf if left is None else at + left - reserve,
            seed=spec.search.seed,
            precision=math.log1p(spec.confirm.precision),
            min_rounds=min_rounds,
            max_rounds=max_rounds,
            max_turns=MAX_TURNS if self._rests else 1,
            shortest_turn=shortest,
            longest_turn=longest,
            drift=self._drift,
        )
        trials.progress.begin("confirming", min_rounds)
        trials.progress.follow_race(lambda: self._score_now(policy))
        num_arms, verifier = len(self._arms), self._verifier
        lives = JobLives(
            context, trials, self._folder, self._job, num_arms, rests=self._rests, verifier=verifier
        )
        try:
            why = race.run(policy, lives, self._log, self._count, trials.budget.clock).why
        except StopAskedError:
            trials.jobs.cancel()
            if not self.rounds:
                raise
            self.ended = "it was stopped"
            return
        finally:
            self._count()
        ended = {CLEAR: words.NARROW_ENOUGH, LONG: words.rounds_limit(len(self.rounds))}
        self.ended = ended.get(why, why)

    def _score_now(self, policy: Policy) -> Sequence[Score]:
        """Returns how the race stands."""
        num_events, score = self._scores
        if num_events != len(self._log):
            rounds = rounds_of(self._log)
            continued = policy.arms_after(rounds[: policy.num_complete(rounds)])
            score = scores(rounds, self._arms, continued)
            self._scores = len(self._log), score
        return score

    def _count(self) -> None:
        self._trials.progress.advance_to(len(self.rounds))

    def _job(self, start: Start) -> Job:
        record, measure = self._trials.table.records[start.arm], self._context.spec.measure
        params: dict[str, object] = {
            "round": start.round,
            "arm": start.arm,
            ARMS: self._arms[1:],
        }
        job = self._trials.job(RACE_STAGE, record.config, params)
        is_stopped = self._rests and self._context.spec.traits.takes_turns
        plan = MeasurePlan(
            window_seconds=start.turn_seconds,
            repeats=1,
            warmup_cap_seconds=min(
                SCRIPT_WARMUP_SECONDS if is_stopped else math.inf,
                measure.warmup_cap_seconds,
                warmup_seconds(record.measurement),
            ),
            # Time to repeat the window once if it is disturbed.
            cap_seconds=1.5 * start.turn_seconds,
            quiet_canary_ms=self._trials.quiet_canary_ms(),
            diagnose=False,
        )
        return dataclasses.replace(job, plan=plan)

    def ratios(self) -> list[Ratio]:
        """Returns each candidate's ratio to the baseline, best first."""
        return ratios(self.rounds, self._drift, self._early)

    def record(self) -> None:
        """Adds the speeds to the machine's record."""
        records = self._trials.table.records
        names = {number: self._context.key_of(records[number]) for number in self._arms}
        self._machine.add(block_of(self.rounds, names, time.time(), self._of))

    def decision(self, unfit: Collection[int]) -> WinnerChoice:
        """Returns the fastest candidate or its simplest rival, without those that are unfit."""
        records, by_changes = self._trials.table.records, self._context.spec.traits.is_of_changes
        configs = {number: records[number].config for number in self._arms}
        return choose_winner(
            self.rounds,
            configs,
            unfit,
            by_changes=by_changes,
            drift=self._drift,
            early=self._early,
            before=self._before,
        )

    def result(self, unfit: Collection[int]) -> ConfirmationResult:
        """Returns the winner and its rivals."""
        decision = self.decision(unfit)
        if not is_speed(self._context.spec):
            # The search decided by other objectives; the race measures only its speed.
            decision = WinnerChoice(winner=next((n for n in self._arms[1:] if n not in unfit), None))
        return ConfirmationResult(
            winner=decision.winner,
            ties=decision.ties,
            infeasible=tuple(sorted(unfit)),
            ratios=tuple(self.ratios()),
            race_end=self.ended,
            disturbances=self._num_disturbed(),
        )

    def _num_disturbed(self) -> dict[int, int]:
        """Returns how many processes of each arm were disturbed."""
        counts = dict.fromkeys(self._arms, 0)
        for life in (life for one in self.rounds for life in one.lives.values()):
            outcome = read_outcome(self._folder / f"{life.number:04d}")
            if isinstance(outcome, Measurement) and outcome.contamination:
                counts[life.arm] += 1
        return counts
