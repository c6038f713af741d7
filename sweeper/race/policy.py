"""Decides what a race does next, from its log alone: the same log always leads to the same end."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from sweeper.race.log import BASELINE, Event, Life, Round, is_over, rounds_of
from sweeper.race.tally import (
    EARLY_LEVEL,
    LAST_LEVEL,
    USUAL_FREEDOM,
    USUAL_VARIANCE,
    Tally,
    log_ratios,
    variance,
)

MIN_TURN_SECONDS, MAX_TURN_SECONDS, STEPS_PER_TURN, MIN_STEPS = 1.0, 3.0, 25, 3
FIRST_TURNS, MAX_TURNS = 3, 20
"""Turns of each process in the first round, before it is known how they differ, and at most."""

CLEAR_WIDTH, CLEAR_SHARE = math.log(1.05), 0.4
"""Half-width of an interval that is narrow enough for a clear difference, and its share of the difference."""
NARROW = math.log(1.01)
"""Half-width of an interval that is narrow enough for any answer."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start a process of an arm."""

    arm: int
    turn_seconds: float


@dataclass(frozen=True, slots=True)
class Turn:
    """Let a process take a turn."""

    life: int


@dataclass(frozen=True, slots=True)
class End:
    """End a process."""

    life: int


@dataclass(frozen=True, slots=True)
class Done:
    """The race is over."""

    why: str


Action = Start | Turn | End | Done
CLEAR, TIME = "the answer is clear", "the time is up"


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of a race between a baseline and other arms.

    Attributes:
        seconds: The race's limit. One round takes place in any case.
        seed: Decides the order of the arms.
    """

    arms: int
    seconds: float
    seed: int = 0

    def next(self, log: Sequence[Event], at: float) -> Action:
        """Returns what to do next, `at` seconds after the race has begun."""
        rounds = rounds_of(log)
        complete = [each for each in rounds if is_over(each, self.arms)]
        if len(complete) < len(rounds):
            return self._next_in_round(rounds[-1], complete, at)
        if complete:
            if self.is_clear(complete):
                return Done(CLEAR)
            if at + self._round_seconds(complete) > self.seconds:
                return Done(TIME)
        return self._start(complete, self._order(len(rounds))[0])

    def is_clear(self, complete: Sequence[Round]) -> bool:
        """Returns whether more rounds would hardly change the answer for any arm."""
        return all(_is_clear(Tally.of(complete, arm)) for arm in range(self.arms) if arm != BASELINE)

    def turns(self, complete: Sequence[Round]) -> int:
        """Returns how many turns of each process make the best use of a round.

        They are few if processes differ more than turns, and many if a start takes long.
        """
        if not complete:
            return FIRST_TURNS
        within, turn, start = (
            _variance_of_turns(complete),
            _mean_turn_seconds(complete),
            _mean_start_seconds(complete),
        )
        if within is None or not turn:
            return FIRST_TURNS
        best = math.sqrt(start / turn * within / _variance_of_pairs(complete, within))
        return min(max(1, round(best)), MAX_TURNS)

    def turn_seconds(self, complete: Sequence[Round]) -> float:
        """Returns how long a turn is: long enough for the steps of the slowest arm."""
        step = max((life.step_seconds for each in complete[-1:] for life in each.lives.values()), default=0.0)
        return max(min(max(MIN_TURN_SECONDS, STEPS_PER_TURN * step), MAX_TURN_SECONDS), MIN_STEPS * step)

    def _round_seconds(self, complete: Sequence[Round]) -> float:
        """Returns how long another round will take at most, judging by those that there were."""
        turn = max(self.turn_seconds(complete), _mean_turn_seconds(complete))
        return self.arms * self.turns(complete) * turn + max(
            each.ended_at - each.began_at - _seconds_of_turns(each) for each in complete
        )

    def _next_in_round(self, now: Round, complete: Sequence[Round], at: float) -> Action:
        """Returns what to do next in an unfinished round."""
        order = self._order(len(complete))
        alive = [life for life in now.lives.values() if not life.is_over]
        unstarted = [arm for arm in order if arm not in now.lives]
        wanted = self.turns(complete)
        if unstarted and (now.is_in_company or not alive):
            return self._start(complete, unstarted[0])
        if not now.is_in_company:
            # It takes its turns alone, before the next one is started.
            (life,) = alive
            is_late = at > self.seconds and len(life.turns) > 0
            return Turn(life.number) if len(life.turns) < wanted and not is_late else End(life.number)
        taken = min(len(life.turns) for life in now.lives.values())
        is_first = taken == max(len(life.turns) for life in now.lives.values())
        if len(alive) < self.arms or (is_first and self._has_enough(now, complete, taken, at)):
            return End(alive[0].number)
        return Turn(self._next_in_turn(now, taken, len(complete)).number)

    def _has_enough(self, now: Round, complete: Sequence[Round], taken: int, at: float) -> bool:
        """Returns whether each process has taken enough turns.

        Where there is no time for another round, the rest of it is used for more turns.
        """
        if taken < self.turns(complete):
            return at > self.seconds and taken > 0
        has_time = at + (at - now.began_at) <= self.seconds
        one_more = sum(life.turns[-1].seconds for life in now.lives.values())
        is_late = at + one_more > self.seconds or taken >= MAX_TURNS
        return has_time or is_late or self.is_clear([*complete, now])

    def _next_in_turn(self, now: Round, taken: int, number: int) -> Life:
        order = self._order(number, taken + 1)
        return next(now.lives[arm] for arm in order if len(now.lives[arm].turns) == taken)

    def _start(self, complete: Sequence[Round], arm: int) -> Start:
        return Start(arm, self.turn_seconds(complete))

    def _order(self, *place: int) -> list[int]:
        """Returns the arms in an order that is random, but the same for each place in a race."""
        return random.Random(f"{self.seed} {place}").sample(range(self.arms), self.arms)


def _is_clear(tally: Tally) -> bool:
    if not tally.logs or (len(tally.logs) == 1 and not tally.turn_variances):
        # Nothing shows yet how much turns differ.
        return False
    half = tally.half_width(EARLY_LEVEL)
    narrow = max(CLEAR_WIDTH, CLEAR_SHARE * abs(tally.mean))
    is_off = abs(tally.mean) > half
    return half <= NARROW or (is_off and tally.half_width(LAST_LEVEL) <= narrow)


def _pairs(complete: Sequence[Round]) -> list[list[float]]:
    """Returns the logs of the turns' ratios of all pairs of processes with more than one turn."""
    found = (log_ratios(each, arm) for each in complete for arm in each.lives if arm != BASELINE)
    return [each for each in found if len(each) > 1]


def _variance_of_turns(complete: Sequence[Round]) -> float | None:
    """Returns the variance of turns within pairs of processes; None if no pair has two turns."""
    pairs = _pairs(complete)
    return statistics.fmean(variance(each) for each in pairs) if pairs else None


def _variance_of_pairs(complete: Sequence[Round], within: float) -> float:
    """Returns the variance between pairs of processes, without that of their turns."""
    total, freedom = USUAL_FREEDOM * USUAL_VARIANCE, USUAL_FREEDOM
    for arm in set(itertools.chain.from_iterable(each.lives for each in complete)) - {BASELINE}:
        pairs = [logs for each in complete if (logs := log_ratios(each, arm))]
        if len(pairs) > 1:
            own = variance([statistics.fmean(each) for each in pairs])
            own -= within * statistics.fmean(1 / len(each) for each in pairs)
            total += (len(pairs) - 1) * max(0.0, own)
            freedom += len(pairs) - 1
    return total / freedom


def _mean_turn_seconds(complete: Sequence[Round]) -> float:
    turns = [turn.seconds for each in complete for life in each.lives.values() for turn in life.turns]
    return statistics.fmean(turns) if turns else 0.0


def _seconds_of_turns(found: Round) -> float:
    return math.fsum(turn.seconds for life in found.lives.values() for turn in life.turns)


def _mean_start_seconds(complete: Sequence[Round]) -> float:
    return statistics.fmean(life.started.seconds for each in complete for life in each.lives.values())
