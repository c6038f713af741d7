"""Races the best arm of a tune with new processes: what it brings is handed over, if it trains the same.

The race runs until its answer is clear. Then the baseline is recorded with other seeds, if what may win can
be judged by them alone. Then the race has the time that is left.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sweeper.core.config import TrialConfig
from sweeper.core.job import RACE_STAGE, MeasurePlan
from sweeper.core.measurement import Failure
from sweeper.race.log import BASELINE, Verified
from sweeper.race.tally import Tally
from sweeper.race.verify import MORE_SEEDS, OTHER_SEEDS
from sweeper.results.numbers.confirmation_result import ConfirmationResult
from sweeper.script.changes.change import EXACT
from sweeper.script.run.running import RECORD_ONLY
from sweeper.sweep.phases.lives import MIN_START_SECONDS, REPORT_SECONDS, limit_recording, seconds_at_most
from sweeper.sweep.phases.race import MAX_ROUNDS, SweepRace
from sweeper.sweep.start.context import SweepContext
from sweeper.sweep.stopping import StopAskedError, StopHandler
from sweeper.sweep.trial_runner import TrialRunner
from sweeper.tuning.timetable import FINAL_ROUNDS
from sweeper.tuning.verifier import RaceVerifier, SeedRun

NOT_COMPARED = "it could not be compared with runs of other seeds in time"

RecordSeed = Callable[[SeedRun], Path | None]
"""Function that records an arm with another seed; None if it has no time, or no whole record."""


class FinalRace:
    """The race at the end of a tune."""

    def __init__(
        self,
        race: SweepRace,
        numbers: Sequence[int],
        stopping: StopHandler,
        verifier: RaceVerifier | None,
        events: Mapping[int, Verified],
    ) -> None:
        """Starts nothing yet.

        Args:
            race: What runs it.
            numbers: Its arms but the baseline.
            verifier: Compares the records of its processes; None if they are not recorded.
            events: What the first race has shown of their training. It must do where nothing is recorded.
        """
        self._race, self._numbers, self._stopping = race, tuple(numbers), stopping
        self._verifier = verifier
        # What other processes have shown: those of the first race, or the baseline with other seeds.
        self._events = dict(events) if verifier is None else {}
        # What its own processes had shown before the baseline ran with other seeds.
        self._before: Mapping[int, Verified] = {}

    @property
    def verified(self) -> Mapping[int, Verified]:
        """What is known last about the training of each arm."""
        news = {arm: now for arm, now in self._race.verified.items() if now != self._before.get(arm)}
        return {**self._before, **self._events, **news}

    @property
    def carries_interval(self) -> bool:
        """Whether it knows more than a race before it: a single turn of each tells nothing."""
        return any(Tally.of(self._race.rounds, arm).carries_interval for arm in self._numbers)

    def run(self, num_rounds: int, seed_seconds: float, record_seed: RecordSeed) -> None:
        """Runs it, with other seeds if they are needed.

        Args:
            num_rounds: Usual number of rounds of a race.
            seed_seconds: Seconds that are kept for such records.
            record_seed: Makes one.

        Raises:
            StopAskedError: The user has asked the tune to end, before anything could be compared.
        """
        limits = FINAL_ROUNDS, MAX_ROUNDS * num_rounds
        self._race.run(self._numbers, *limits, REPORT_SECONDS + seed_seconds)
        if self._verifier is not None:
            before = self._race.verified
            for arm in sorted(self._faster_arms()):
                self._enter_seeds(self._verifier, arm, record_seed)
            self._before = before
        if not self._stopping.is_requested:
            # What is left over is used.
            self._race.run(self._numbers, *limits, REPORT_SECONDS)

    def _enter_seeds(self, verifier: RaceVerifier, arm: int, record_seed: RecordSeed) -> None:
        """Records runs with other seeds until it is known how an arm trains, or there is no more time."""
        while not self._stopping.is_requested and (run := verifier.seed_wanted(arm)) is not None:
            folder = record_seed(run)
            if folder is None:
                return
            self._events.update(verifier.enter_seed(run, folder))

    def _faster_arms(self) -> set[int]:
        """Returns the arms that may win."""
        return {ratio.trial for ratio in self._race.ratios() if ratio.low > 1}

    def answers(self) -> Mapping[int, Verified]:
        """Returns what is said of each arm's training. What was not compared as it must be is a fault."""
        if self._verifier is None:
            return {arm: _require_exact(event) for arm, event in self.verified.items()}
        answers = dict(self.verified)
        for arm in self._faster_arms() & answers.keys():
            run = self._verifier.seed_wanted(arm)
            if run is not None and run.shift in OTHER_SEEDS and not answers[arm].fault:
                # Only its first steps were compared.
                answers[arm] = dataclasses.replace(answers[arm], fault=NOT_COMPARED)
        return answers

    def result(self, answers: Mapping[int, Verified]) -> tuple[ConfirmationResult, set[int]]:
        """Adds the speeds to the machine's record.

        Args:
            answers: What is said of each arm's training.

        Returns:
            The winner and its rivals; and the arms whose verification is to be kept.
        """
        self._race.record()
        # What has no record here is not known to train the same.
        unfit = {arm for arm in self._numbers if arm not in answers or answers[arm].fault}
        result = self._race.result(unfit)
        chosen = unfit if result.winner is None else {result.winner, *unfit}
        return result, {arm for arm in chosen & answers.keys() if not answers[arm].is_open}


def _require_exact(event: Verified) -> Verified:
    """Returns what first steps have shown, which does only where they were equal in every bit."""
    is_known = event.kind == EXACT and not event.is_open
    return event if is_known or event.fault else dataclasses.replace(event, fault=NOT_COMPARED)


def record_seed(
    context: SweepContext,
    trials: TrialRunner,
    verifier: RaceVerifier,
    config_of: Callable[[int], TrialConfig],
    run: SeedRun,
) -> Path | None:
    """Runs an arm with another seed, to be recorded only.

    Args:
        config_of: Returns the configuration of an arm.

    Returns:
        The folder of its process; None if there is no time, or no whole record.
    """
    left, at_most = trials.budget.seconds_left, seconds_at_most(context, trials)
    is_late = at_most is not None and at_most < MIN_START_SECONDS
    is_optional = run.arm != BASELINE or run.shift in MORE_SEEDS
    if is_late or (is_optional and left is not None and left < 0):
        return None
    folder = context.journal.setup_folder(f"seed-{run.shift}" + (f"-{run.arm}" if run.arm else ""))
    shutil.rmtree(folder, ignore_errors=True)
    job = trials.job(RACE_STAGE, config_of(run.arm), {"shift": run.shift})
    plan = MeasurePlan(window_seconds=0.1, repeats=1, warmup_cap_seconds=0.0, diagnose=False)
    recording = limit_recording(verifier.long_recording(run.shift), context, trials)
    try:
        outcome = trials.run(folder, dataclasses.replace(job, plan=plan, recording=recording))
    except StopAskedError:
        trials.jobs.cancel()
        return None
    # A record that was cut off would be compared as far as it goes.
    return None if isinstance(outcome, Failure) and outcome.message != RECORD_ONLY else folder
