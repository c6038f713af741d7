"""Estimates how long the parts of a tune take, and when the race at its end must begin."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from sweeper.race.log import BASELINE, Round
from sweeper.race.policy import turn_seconds
from sweeper.race.tally import Tally
from sweeper.race.verify import MORE_SEEDS, OTHER_SEEDS
from sweeper.script.changes.change import EXACT
from sweeper.tuning.contests import Candidate, Members, RaceState

MIN_LAPS = 3
"""Turns of each process before a challenger is decided upon that is not far off."""
TURNS_ALONE = 4
"""Turns of each process where there is no room for another one."""
FINAL_ROUNDS, FINAL_TURNS = 2, 4
"""Rounds of the race at the end for which time is kept, and turns of each process in them."""
FINAL_SHARE = 0.45
"""Largest share of the time that is kept for more than one turn of each, and for other seeds."""
SEED_SHARE = 0.15
"""Largest share of the time that is kept for more than one run with another seed."""
FEWEST_ARMS = 2
"""Arms of the race at the end, at least: the baseline and the leader."""
FINAL_RECORD_SECONDS, FINAL_RECORD_STEPS = 1.0, 11
"""Seconds that a process takes longer to start there, or steps, whichever takes longer: its record has the
ends of two passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """How long the parts of a tune take, as far as its rounds show.

    Attributes:
        candidates: What may be tried.
        seconds: The time limit, with that of the race at the end.
        last_seconds: Seconds for what is no race: the report, and taking the baseline's steps apart.
    """

    candidates: tuple[Candidate, ...]
    seconds: float
    last_seconds: float

    def is_late(self, state: RaceState, at: float, num_finalists: int) -> bool:
        """Returns whether there is no time for more turns, `at` seconds after the tune has begun."""
        pairs = ((one.arm, one.reference) for one in state.contests.values())
        has_number = any(Tally.of(state.rounds, *pair).logs for pair in pairs)
        # The first number has all the time there is.
        return at > (self.latest_final(state, num_finalists) if has_number else self.seconds)

    def latest_final(self, state: RaceState, num_finalists: int) -> float:
        """Returns the second at which the race at the end must begin.

        Where it has no time after the first number, what is raced already has all of it.

        Args:
            num_finalists: Number of its arms but the baseline.
        """
        first, last = _first_number_at(state), self.seconds - self.last_seconds
        if first is not None and first + self.round_seconds(state, FEWEST_ARMS) > last:
            return last
        num_arms = 1 + num_finalists
        # Where nothing leads, there is more to gain from what was not tried.
        num_rounds = 1 if state.leader == BASELINE else FINAL_ROUNDS
        rounds = num_rounds * self.round_seconds(state, num_arms, FINAL_TURNS)
        # Where starts or steps are long, one round has fewer turns, and what is to be tried has the rest.
        seeds = self.seed_seconds(state)
        rounds = max(self.round_seconds(state, num_arms), min(rounds, FINAL_SHARE * self.seconds - seeds))
        return last - seeds - rounds

    def is_recorded_again(self, state: RaceState) -> bool:
        """Returns whether there is time for the ends of two passes in the records of the race at the end.

        Without them, what the first race has verified must do: changes that are exact.
        """
        more = FEWEST_ARMS * _final_record_seconds(state)
        return self._start_seconds(state, FEWEST_ARMS) + more <= FINAL_SHARE * self.seconds

    def seed_seconds(self, state: RaceState) -> float:
        """Returns about how long the baseline runs with other seeds, to be recorded only, if it must."""
        leading = [one for one in self.candidates if one.word in state.members(state.leader)]
        if all(one.kind == EXACT for one in leading):
            return 0.0
        num_seeds = len(OTHER_SEEDS) + (len(MORE_SEEDS) if any(one.is_half for one in leading) else 0)
        run = mean_start_seconds(state.rounds) + _final_record_seconds(state)
        return max(run, min(num_seeds * run, SEED_SHARE * self.seconds))

    def round_seconds(self, state: RaceState, num_arms: int, num_turns: int = 1) -> float:
        """Returns about how long a round of the race at the end takes.

        Args:
            num_arms: Number of its arms, the baseline included.
            num_turns: Number of turns of each.
        """
        record = _final_record_seconds(state) if self.is_recorded_again(state) else 0.0
        return self._start_seconds(state, num_arms, num_turns) + num_arms * record

    def _start_seconds(self, state: RaceState, num_arms: int, num_turns: int = 1) -> float:
        """Returns about how long starts with short records, or none, and turns take."""
        turn = turn_seconds(_step_of_finalists(state))
        return num_arms * (mean_start_seconds(state.rounds) + num_turns * turn)

    def arm_seconds(self, state: RaceState, members: Members) -> float:
        """Returns about how long it takes to compare another arm."""
        leading = state.members(state.leader)
        more = sum(one.seconds for one in self.candidates if one.word in members - leading)
        num_alive = 2 + (state.leader != BASELINE)
        is_alone = bool(state.rounds) and state.rounds[-1].is_in_company is False
        num_turns = TURNS_ALONE if is_alone else MIN_LAPS * num_alive
        return mean_start_seconds(state.rounds) + more + num_turns * latest_turn_seconds(state.rounds)


def _first_number_at(state: RaceState) -> float | None:
    """Returns the second at which an arm could be compared with the baseline first; None before that."""
    pairs = ((one.lives.get(BASELINE), life) for one in state.rounds for life in one.lives.values())
    return min(
        (
            max(base.turns[0].at, life.turns[0].at)
            for base, life in pairs
            if base is not None and life.arm != BASELINE and base.turns and life.turns
        ),
        default=None,
    )


def mean_start_seconds(rounds: Sequence[Round]) -> float:
    """Returns how long a process usually takes to start."""
    starts = [life.started.seconds for one in rounds for life in one.lives.values()]
    return statistics.fmean(starts) if starts else 0.0


def latest_turn_seconds(rounds: Sequence[Round]) -> float:
    """Returns how long a turn is: long enough for the steps of the slowest arm."""
    lives = [life for one in rounds[-1:] for life in one.lives.values()]
    return turn_seconds(max((life.step_seconds for life in lives), default=0.0))


def _step_of_finalists(state: RaceState) -> float:
    """Returns the seconds of a step of the baseline or the leader, whichever is slower.

    A challenger that is slower will not race at the end.
    """
    arms = (BASELINE, state.leader)
    lives = [one.lives[arm] for one in state.rounds for arm in arms if arm in one.lives]
    return max((life.step_seconds for life in lives), default=0.0)


def _final_record_seconds(state: RaceState) -> float:
    return max(FINAL_RECORD_SECONDS, FINAL_RECORD_STEPS * _step_of_finalists(state))
