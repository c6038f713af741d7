"""Races changes to a script: the best of them, with what they bring and what was verified of them."""

from __future__ import annotations

import dataclasses
import functools
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.job import write_outcome
from sweeper.core.measurement import Failure, FailureKind, Measurement
from sweeper.core.progress import TrialFailedError
from sweeper.core.record import BASELINE
from sweeper.race import race
from sweeper.race.log import Ended, Life, Verified, rounds_of
from sweeper.race.scores import Score, scores
from sweeper.race.tally import Tally
from sweeper.race.verify import batches_of_a_pass
from sweeper.results.numbers.confirmation import Ratio, ratios
from sweeper.results.numbers.confirmation_result import ConfirmationResult
from sweeper.script.changes import CHANGES, takes_long
from sweeper.script.changes.change import EXACT, SINGLE
from sweeper.script.changes.environment import Threads
from sweeper.script.run.taken_apart import usual_seconds
from sweeper.script.run.warm import WarmProcess, read_warm
from sweeper.sweep.folder.journal import DAMAGED_RACE, FINAL_RACE
from sweeper.sweep.folder.machine_record import MachineRecord
from sweeper.sweep.folder.result import SweepResult
from sweeper.sweep.phases.lives import REPORT_SECONDS, seconds_at_most
from sweeper.sweep.phases.race import ARMS, SweepRace
from sweeper.sweep.start.context import SweepContext
from sweeper.sweep.stopping import StopAskedError
from sweeper.sweep.supervisor import load_trials
from sweeper.sweep.trial_runner import TrialRunner
from sweeper.system.files import reading
from sweeper.tuning.arms import Arms
from sweeper.tuning.changes import ChangeValue, known_changes, list_changes
from sweeper.tuning.contests import REFUSED, WON, Candidate, RaceState
from sweeper.tuning.final_race import FinalRace, record_seed
from sweeper.tuning.lives import FIRST_RACE, BaselineRules, TuneLives, TuneLog, cut_off_outcome
from sweeper.tuning.options import TuneOptions
from sweeper.tuning.policy import TIME, TunePolicy
from sweeper.tuning.specification import is_made_otherwise
from sweeper.tuning.verifier import LONG_SECONDS, RaceVerifier

DIAGNOSIS_SHARE = 0.1
"""Largest share of a tune's time for taking steps apart: the race has more use for the rest."""
START_SECONDS, START_SHARE, MORE_TIME = 60.0, 0.2, 5.0
"""Seconds that a start and its record may take, or share of the tune's time if that is less, and a
multiple of the script's own start in addition."""
COMPILE_SHARE = 0.25
"""Share of the longest time that a change takes to make which it usually takes."""
ORDER = ("exchange", "optimizer", "precision", "threads", "layout", "tf32", "cudnn_benchmark", "ddp")
"""Changes in the order in which they are tried, though all exact ones come first: of these, `ddp`. Changes
without a place, such as the user's own, follow; what takes long comes last. Threads come before all of these
where workers, ranks or other programs share their cores."""
MIN_FOREIGN_CORES = 0.3
"""Number of cores kept busy by other programs from which on threads of an operation wait for one another."""


@dataclass(slots=True)
class Course:
    """The course of a tune's race so far.

    Attributes:
        warm: The script as it is, once its first process is warm.
        changes: All values of all changes; those that are not tried have the reason.
        policy: The rules, once it is known what may be tried.
    """

    warm: WarmProcess | None = None
    changes: Sequence[ChangeValue] = ()
    policy: TunePolicy | None = None
    log: TuneLog | None = None

    @property
    def state(self) -> RaceState | None:
        """How the arms stand; None before it is known what may be tried."""
        if self.policy is None or self.log is None:
            return None
        return self.policy.state(self.log)


Follow = Callable[[Course], None]
"""Function that is called whenever something is known."""


class ChangesRace:
    """The phases of a tune's sweep.

    Attributes:
        course: What is known so far.
    """

    def __init__(self, options: TuneOptions, follow: Follow) -> None:
        """Starts nothing yet."""
        self._options, self._follow = options, follow
        self.course = Course()

    def run(self, context: SweepContext) -> None:
        """Races the changes and writes the result to the folder.

        If the user asks it to stop, the best so far is the result.
        """
        journal = context.journal
        with TrialRunner.of(context) as trials:
            load_trials(context, trials)
            _charge(context, trials)
            phases = _Phases(context, trials, self._options, self.course, self._follow)
            try:
                confirmation = phases.run()
            except StopAskedError:
                trials.jobs.cancel()
                phases.enter_cut_off(is_over=False)
                confirmation = phases.best_so_far()
                if confirmation.winner is None:
                    raise KeyboardInterrupt from None
            result = SweepResult(search_end=phases.ended, confirmation=confirmation)
            if context.stopping.is_requested:
                journal.write_interim_result(result)
            else:
                journal.write_result(result)


class _Phases:
    """The race in which arms join, and the one at the end.

    Attributes:
        ended: Why the first one ended.
    """

    def __init__(
        self,
        context: SweepContext,
        trials: TrialRunner,
        options: TuneOptions,
        course: Course,
        follow: Follow,
    ) -> None:
        self._context, self._trials, self._options = context, trials, options
        self._course, self._follow = course, follow
        self._arms = Arms(context.spec, options.command)
        self._verifier = RaceVerifier(self._arms.changes_of)
        self._final: FinalRace | None = None
        self._lives: TuneLives | None = None
        self._scored: tuple[int, Sequence[Score]] = (-1, ())
        self.ended = "it was stopped"
        path = context.journal.race_log(FIRST_RACE)
        with reading(path, DAMAGED_RACE):
            course.log = TuneLog(path, lambda: follow(course))

    def run(self) -> ConfirmationResult:
        """Runs both races."""
        self._join()
        self.enter_cut_off(is_over=True)
        return self._finish()

    def enter_cut_off(self, *, is_over: bool) -> None:
        """Enters what was measured of arms whose first process was cut off, or has failed.

        Args:
            is_over: Whether no more processes of theirs follow in this race.
        """
        state = self._course.state
        refused = {arm for arm, one in state.contests.items() if one.outcome == REFUSED} if state else set()
        for entry in list(self._context.journal.trials()):
            outcome, lives = entry.outcome, self._lives_of(entry.number)
            is_different = isinstance(outcome, Failure) and outcome.kind is FailureKind.DIFFERENT
            if isinstance(outcome, Measurement) or is_different or (outcome and entry.number in refused):
                continue
            turns = [turn for life in lives for turn in life.turns]
            warm = self._warm_of(entry.folder, lives)
            if (warm is None or not turns) and (outcome is not None or not is_over):
                continue
            outcome = cut_off_outcome(warm, turns)
            write_outcome(entry.folder, outcome)
            self._trials.finish(entry.number, entry.job, outcome)

    def _warm_of(self, folder: Path, lives: Sequence[Life]) -> WarmProcess | None:
        """Returns what the first process of an arm that was warm has shown."""
        race_folder = self._context.journal.race_folder(FIRST_RACE)
        folders = [folder, *(race_folder / f"{life.number:04d}" for life in lives)]
        return next((warm for one in folders if (warm := read_warm(one)) is not None), None)

    def _lives_of(self, arm: int) -> list[Life]:
        rounds = rounds_of(self._course.log or ())
        return [one.lives[arm] for one in rounds if arm in one.lives]

    def best_so_far(self, why: str = "it was stopped") -> ConfirmationResult:
        """Returns the leader, with what is known about it.

        Args:
            why: Why no more is known.
        """
        course = self._course
        if course.policy is None or course.log is None:
            return ConfirmationResult(winner=None)
        state = course.policy.state(course.log, is_final=True)
        self._arms.enter(state)
        # Also where a single turn of each carries no interval.
        tallies = {arm: Tally.of(state.rounds, arm) for arm in state.contests}
        faster = {arm for arm, tally in tallies.items() if tally.logs and tally.interval()[0] > 0}
        # What the race at the end has shown to train differently is out.
        events = self._final.verified if self._final is not None else {}
        unfit = {arm for arm, event in events.items() if event.fault and not event.is_open}
        won = [arm for arm, contest in state.contests.items() if contest.outcome == WON]
        winner = next((arm for arm in (state.leader, *won[::-1]) if arm in faster - unfit), None)
        if winner is not None:
            event = events.get(winner)
            is_longer = event is not None and not event.is_failure and not event.is_open
            verified = event if is_longer else state.contests[winner].verified
            if verified is not None:
                self._write(winner, verified)
        return ConfirmationResult(winner=winner, ratios=self._ratios(), race_end=why, is_provisional=True)

    def _ratios(self) -> tuple[Ratio, ...]:
        """Returns the ratio of each arm to the baseline so far, in the race in which arms join."""
        rounds = rounds_of(self._course.log or ())
        shared = [one for one in rounds if BASELINE in one.speeds and len(one.speeds) > 1]
        context = self._context
        machine = MachineRecord(context.home, context.machine.line)
        return tuple(ratios(shared, machine.drift(before=f"{context.journal.name}/{FINAL_RACE}")))

    # -- the race in which arms join ---------------------------------------------------------------

    def _join(self) -> None:
        """Tries changes until everything was tried or the time is up."""
        context, trials, course = self._context, self._trials, self._course
        log = course.log
        assert log is not None
        trials.progress.begin("racing")
        trials.progress.follow_race(self._scores)
        lives = TuneLives(context, trials, self._verifier, self._arms.config_of)
        lives.is_crowded = any(isinstance(event, Ended) and event.is_crowded for event in log or ())
        self._lives = lives
        for work in context.journal.race_folder(FIRST_RACE).glob("*/work"):
            # Of a process that was killed.
            shutil.rmtree(work, ignore_errors=True)
        try:
            self._race(lives, log)
        except BaseException:
            lives.kill()
            raise

    def _race(self, lives: TuneLives, log: TuneLog) -> None:
        context, trials, course = self._context, self._trials, self._course
        folder, clock = context.journal.trial_folder(BASELINE), trials.budget.clock
        course.warm = read_warm(folder)
        if course.warm is None or not course.warm.measurement.throughput or not log:
            race.run(BaselineRules(log), lives, log, clock=clock)
            course.warm = read_warm(folder)
        warm = course.warm
        if warm is None or not warm.measurement.throughput:
            raise TrialFailedError(
                FailureKind.NO_RESULT,
                "the script must train for at least a few seconds to be compared, but it ended before that."
                " Let it train for more steps or epochs",
            )
        course.changes = self._arms.changes = changes_of(self._options, warm.measurement)
        measured = warm.measurement
        left, at, minutes = trials.budget.seconds_left, log[-1].at, context.spec.search.minutes
        assert left is not None
        assert minutes is not None
        start_seconds = MORE_TIME * (measured.startup_seconds + measured.first_step_seconds)
        self._verifier.limit_seconds = min(START_SECONDS, START_SHARE * 60 * minutes) + start_seconds
        diagnosis_seconds = usual_seconds(measured.step_ms / 1e3, on_gpu=measured.trains_on_gpu)
        is_diagnosed = diagnosis_seconds <= DIAGNOSIS_SHARE * 60 * minutes
        lives.memory_gib = warm.memory_gib
        lives.diagnosed_until = REPORT_SECONDS + diagnosis_seconds if is_diagnosed else math.inf
        course.policy = TunePolicy(
            candidates=tuple(self._candidates(warm)),
            seconds=at + left,
            last_seconds=REPORT_SECONDS + (diagnosis_seconds if is_diagnosed else 0.0),
            seed=context.spec.search.seed,
        )
        self._follow(course)
        # What has turns is not started anew.
        self.enter_cut_off(is_over=False)
        if context.journal.rounds(FINAL_RACE):
            # The race at the end was cut off, and goes on.
            self.ended = TIME
            return
        self.ended = race.run(course.policy, lives, log, clock=clock).why

    def _scores(self) -> Sequence[Score]:
        """Returns how the arms stand that have not lost, and those that run."""
        length = len(self._course.log or ())
        if self._scored[0] != length:
            self._scored = length, self._scores_now()
        return self._scored[1]

    def _scores_now(self) -> Sequence[Score]:
        state = self._course.state
        if state is None:
            return ()
        continued = {BASELINE, state.leader}
        if state.challenger is not None:
            continued.add(state.challenger.arm)
        arms = [arm for arm in sorted(continued) if arm in self._trials.table.records]
        return scores(state.rounds, arms, continued)

    def _candidates(self, warm: WarmProcess) -> list[Candidate]:
        """Returns what may be tried, in order."""
        changes = known_changes(self._options.changes)
        ranks: dict[str, int] = {}
        candidates = []
        for change in self._course.changes:
            if change.refused:
                continue
            rank = ranks.get(change.name, 0)
            ranks[change.name] = rank + 1
            candidate = Candidate(
                name=change.name,
                word=change.word_of_arm,
                kind=change.kind,
                ceiling=change.ceiling,
                rank=rank,
                seconds=COMPILE_SHARE * changes[change.name].limit_seconds,
                shared_refusals=changes[change.name].shared_refusals,
                is_of_environment=change.is_of_environment,
                is_own=change.name not in CHANGES,
                is_half=change.rounding > SINGLE,
            )
            candidates.append(candidate)
        return sorted(candidates, key=functools.partial(_place, shares_cores=shares_cores(warm)))

    # -- the race at the end -----------------------------------------------------------------------

    def _finish(self) -> ConfirmationResult:
        """Races the leader with new processes, and returns what is handed over."""
        course, context, trials = self._course, self._context, self._trials
        policy, log, warm = course.policy, course.log, course.warm
        assert policy is not None
        assert log is not None
        assert warm is not None
        state = policy.state(log, is_final=True)
        self._arms.enter(state)
        arms = {contest.members: arm for arm, contest in state.contests.items() if contest.outcome != REFUSED}
        numbers = [arms[members] for members in policy.finalists(log) if members in arms]
        if not numbers:
            return ConfirmationResult(winner=None, ratios=self._ratios())
        folder = context.journal.race_folder(FINAL_RACE)
        begun = next((entry.job.params for entry in context.journal.race_jobs(FINAL_RACE)), {})
        if list(begun.get(ARMS, ())) != numbers:
            shutil.rmtree(folder, ignore_errors=True)
        left, round_seconds = (
            seconds_at_most(context, trials),
            policy.timetable.round_seconds(state, len(numbers) + 1),
        )
        if left is not None and left < round_seconds and not context.journal.rounds(FINAL_RACE):
            return self.best_so_far("there was no time for a race of new processes")
        verifier = None
        if policy.timetable.is_recorded_again(state):
            batches = batches_of_a_pass(warm.measurement.step_ms / 1000)
            verifier = RaceVerifier(self._arms.changes_of, batches=batches, repeats=self._verifier.repeats)
            verifier.limit_seconds = self._verifier.limit_seconds + LONG_SECONDS
            self._verifier = verifier
            verifier.replay(context.journal.race_events(FINAL_RACE), folder)
        assert self._lives is not None
        rests = bool(state.rounds[-1].is_in_company) and self._lives.has_room(len(numbers) + 1)
        window = context.spec.measure.window_seconds
        race = SweepRace(
            context, trials, FINAL_RACE, window, verifier=verifier, rests=rests, before=state.rounds
        )
        events = {arm: event for arm in numbers if (event := state.contests[arm].verified)}
        final = self._final = FinalRace(race, numbers, context.stopping, verifier, events)
        record = functools.partial(record_seed, context, trials, self._verifier, self._arms.config_of_arm)
        final.run(context.spec.confirm.rounds, policy.timetable.seed_seconds(state), record)
        if not final.carries_interval:
            return self.best_so_far("new processes could not be compared")
        answers = final.answers()
        result, kept = final.result(answers)
        for arm in kept:
            self._write(arm, answers[arm])
        return result

    def _write(self, arm: int, event: Verified) -> None:
        record, repeats = self._trials.table.records[arm], self._verifier.repeats
        self._arms.write(record, event, is_nondeterministic=repeats.race)


def changes_of(options: TuneOptions, measured: Measurement) -> list[ChangeValue]:
    """Returns all values of all changes; those that are not tried have the reason.

    Args:
        measured: Measurement of the script as it is.
    """
    changes = list_changes(measured, options.changes, allow_other_draws=options.allow_other_draws)
    return [
        change
        if change.refused or not is_made_otherwise(change, measured.observed)
        else dataclasses.replace(change, refused="it does not use one thread per core")
        for change in changes
    ]


def shares_cores(warm: WarmProcess) -> bool:
    """Returns whether workers, ranks or other programs compute on the cores of a script's threads."""
    seen = warm.measurement.observed
    has_company = bool(seen.get("num_workers")) or seen.get("ranks", 1) > 1
    return has_company or warm.foreign_cores >= MIN_FOREIGN_CORES


def _charge(context: SweepContext, trials: TrialRunner) -> None:
    """Subtracts what the races have taken before, if that is more than their trials have."""
    logs = [log for name in (FIRST_RACE, FINAL_RACE) if (log := context.journal.race_events(name))]
    left, minutes = trials.budget.seconds_left, context.spec.search.minutes
    if logs and left is not None and minutes is not None:
        spent = sum(log[-1].at for log in logs) + trials.budget.clock() - context.began
        trials.budget.charge(max(0.0, left - (60 * minutes - spent)))


def _place(candidate: Candidate, *, shares_cores: bool) -> tuple[bool, bool, int, int]:
    """Returns a key that puts candidates in the order in which they are tried.

    Args:
        shares_cores: Whether other processes compute on the cores of its threads.
    """
    order = ORDER.index(candidate.name) if candidate.name in ORDER else len(ORDER)
    if shares_cores and candidate.name == Threads.name:
        order = -1
    return candidate.kind != EXACT, takes_long(candidate.name), order, candidate.rank
