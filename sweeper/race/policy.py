"""Decides what a race does next, from its log alone: the same log always leads to the same end."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from sweeper.race.drift import Drift
from sweeper.race.log import BASELINE, Event, Life, Round, rounds_of
from sweeper.race.tally import (
    EARLY_LEVEL,
    LAST_LEVEL,
    USUAL_FREEDOM,
    USUAL_VARIANCE,
    Tally,
    Variance,
    contenders,
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
HARDLY = 0.35
"""Largest half-width of the rounds' interval that is negligible, as a share of the drift's: both together
are 6% wider than the drift alone."""
MAX_FAILURES = 2
"""Number of processes in a row that fail before an arm is given up."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start a process of an arm.

    Attributes:
        members: What the arm changes, if arms are added while the race runs; `reference` is the arm that it
            is compared with first.
    """

    arm: int
    round: int
    turn_seconds: float
    members: tuple[str, ...] = ()
    reference: int = BASELINE


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
LONG, FAILED = "the limit of rounds is reached", "nothing can be compared with the baseline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rules of a race between a baseline and other arms.

    Attributes:
        arms: The baseline and the others.
        seconds: The race's limit. One round takes place in any case.
        seed: Decides the order of the arms.
        precision: Half-width of the log ratio's interval that the fastest arm is to have; None if the race
            may end once it is clear which is faster, and about by how much.
        min_rounds: Fewest rounds, unless the time is up; `max_rounds` is the most.
        max_turns: Most turns of a process: 1 if none can rest.
        shortest_turn: Shortest turn in seconds; `longest_turn` is the longest, or three steps.
        drift: The machine's drift until a later measurement, beside which an interval need not be narrow.
    """

    arms: tuple[int, ...]
    seconds: float
    seed: int = 0
    precision: float | None = None
    min_rounds: int = 1
    max_rounds: int | None = None
    max_turns: int = MAX_TURNS
    shortest_turn: float = MIN_TURN_SECONDS
    longest_turn: float = MAX_TURN_SECONDS
    drift: Drift | None = None

    def next(self, log: Sequence[Event], at: float) -> Action:
        """Returns what to do next, `at` seconds after the race has begun."""
        rounds = rounds_of(log)
        complete = rounds[: self.num_complete(rounds)]
        if len(complete) < len(rounds):
            return self._next_in_round(rounds[-1], complete, at)
        if complete and (why := self._why_over(complete, at)):
            return Done(why)
        return self._start(complete, self._order(self.arms_after(complete), len(complete))[0])

    def is_complete(self, log: Sequence[Event]) -> bool:
        """Returns whether no round is under way."""
        return self.num_complete(rounds := rounds_of(log)) == len(rounds)

    def num_complete(self, rounds: Sequence[Round]) -> int:
        """Returns how many rounds are over; the last one may not be."""
        if not rounds or rounds[-1].is_over(self.arms_after(rounds[:-1])):
            return len(rounds)
        return len(rounds) - 1

    def arms_after(self, complete: Sequence[Round]) -> Sequence[int]:
        """Returns the arms that take part in the round after these.

        Those that are clearly slower than the fastest are not continued, nor those that cannot be measured.
        Where all that were continued cannot be measured any more, the others are.
        """
        if not complete:
            return self.arms
        others = [arm for arm in self.arms if arm != BASELINE]
        latest = [arm for arm in others if arm in complete[-1].lives]
        kept = self._contenders(complete, latest) or self._contenders(complete, others)
        return [arm for arm in self.arms if arm == BASELINE or arm in kept]

    def _contenders(self, complete: Sequence[Round], arms: Sequence[int]) -> set[int]:
        """Returns the arms that may be the fastest, as far as they can be measured."""
        arms = [arm for arm in arms if not keeps_failing(complete, arm)]
        unknown = {arm for arm in arms if not Tally.of(complete, arm).logs}
        return {*contenders(complete, arms), *unknown}

    def is_clear(self, complete: Sequence[Round]) -> bool:
        """Returns whether more rounds would hardly change the answer for any arm that is continued.

        With a `precision`, it is not asked whether the fastest beats the baseline: looking often must not
        favour that answer.
        """
        arms = [arm for arm in self.arms_after(complete) if arm != BASELINE]
        if self.precision is None:
            return all(_is_clear(Tally.of(complete, arm)) for arm in arms)
        if not (order := contenders(complete, arms)):
            return False
        best, *others = order
        if any(Tally.of(complete, other, best).interval()[1] > self.precision for other in others):
            return False
        tally = Tally.of(complete, best)
        return tally.half_width() <= max(self.precision, self._negligible_half_width(tally.mean))

    def _negligible_half_width(self, mean: float) -> float:
        """Returns the half-width that hardly widens the interval of a later measurement."""
        if self.drift is None:
            return 0.0
        drift = self.drift.variance_of(mean)
        return HARDLY * Variance(2 * drift.value, drift.freedom).half_width()

    def _why_over(self, complete: Sequence[Round], at: float) -> str:
        """Returns why the race ends after these rounds; empty if it goes on."""
        latest = complete[-MAX_FAILURES:]
        is_baseline_failing = len(latest) == MAX_FAILURES and not any(
            BASELINE in one.speeds for one in latest
        )
        if is_baseline_failing or len(self.arms_after(complete)) < 2:
            return FAILED
        if len(complete) >= self.min_rounds and self.is_clear(complete):
            return CLEAR
        if self.max_rounds is not None and len(complete) >= self.max_rounds:
            return LONG
        # What is left over would be lost: one turn of each is better than none.
        return TIME if at + self._round_seconds(complete, most_turns=1) > self.seconds else ""

    def turns(self, complete: Sequence[Round]) -> int:
        """Returns how many turns of each process make the best use of a round.

        They are few if processes differ more than turns, and many if a start takes long.
        """
        first = min(FIRST_TURNS, self.max_turns)
        if not complete:
            return first
        within, turn, start = (
            _variance_of_turns(complete),
            _mean_turn_seconds(complete),
            _mean_start_seconds(complete),
        )
        if within is None or not turn:
            return first
        best = math.sqrt(start / turn * within / _variance_of_pairs(complete, within))
        return min(max(1, round(best)), self.max_turns)

    def turn_seconds(self, complete: Sequence[Round]) -> float:
        """Returns how long a turn is: long enough for the steps of the slowest arm."""
        lives = [life for one in complete[-1:] for life in one.lives.values()]
        step = max((life.step_seconds for life in lives), default=0.0)
        return turn_seconds(step, self.shortest_turn, self.longest_turn)

    def _round_seconds(self, complete: Sequence[Round], most_turns: int = FIRST_TURNS) -> float:
        """Returns how long another round will take at most, judging by those that there were.

        Processes that take turns have fewer of them than would be best if there is no time for more.

        Args:
            most_turns: Number of their turns, unless fewer are best.
        """
        turn = max(self.turn_seconds(complete), _mean_turn_seconds(complete))
        rest = max((one.ended_at - one.began_at - one.seconds_of_turns) / len(one.lives) for one in complete)
        turns = self.turns(complete)
        if complete[-1].is_in_company:
            turns = min(turns, most_turns)
        return len(self.arms_after(complete)) * (turns * turn + rest)

    def _next_in_round(self, now: Round, complete: Sequence[Round], at: float) -> Action:
        """Returns what to do next in an unfinished round."""
        arms = self.arms_after(complete)
        alive = [life for life in now.lives.values() if not life.is_over]
        unstarted = [arm for arm in self._order(arms, len(complete)) if arm not in now.lives]
        wanted = self.turns(complete)
        if unstarted and (now.is_in_company or not alive):
            return self._start(complete, unstarted[0])
        if not now.is_in_company:
            # It takes its turns alone, before the next one is started.
            (life,) = alive
            is_late = at > self.seconds and len(life.turns) > 0
            return Turn(life.number) if len(life.turns) < wanted and not is_late else End(life.number)
        if now.lives[BASELINE].is_over or len(alive) < 2:
            return End(alive[0].number)
        num_turns = min(len(life.turns) for life in alive)
        is_first = num_turns == max(len(life.turns) for life in alive)
        # A turn that is asked for in an evaluation begins at its end.
        is_late = num_turns > 0 and at > self.seconds
        if is_late or (is_first and self._has_enough(now, complete, num_turns, at)):
            # Without it, the others end, too.
            return End(now.lives[BASELINE].number)
        return Turn(self._next_in_turn(now, arms, num_turns, len(complete)).number)

    def _has_enough(self, now: Round, complete: Sequence[Round], num_turns: int, at: float) -> bool:
        """Returns whether each process has taken enough turns.

        Where there is no time for another round, the rest of it is used for more turns.
        """
        if num_turns < self.turns(complete):
            return at > self.seconds and num_turns > 0
        has_time = at + self._round_seconds([*complete, now]) <= self.seconds
        turns = [turn for life in now.lives.values() for turn in life.turns]
        began = min(turn.at - turn.seconds for turn in turns)
        one_more = len(now.lives) * (max(turn.at for turn in turns) - began) / len(turns)
        is_late = at + one_more > self.seconds or num_turns >= self.max_turns
        return has_time or is_late or self.is_clear([*complete, now])

    def _next_in_turn(self, now: Round, arms: Sequence[int], num_turns: int, number: int) -> Life:
        order = self._order(arms, number, num_turns + 1)
        lives = [now.lives[arm] for arm in order if not now.lives[arm].is_over]
        return next(life for life in lives if len(life.turns) == num_turns)

    def _start(self, complete: Sequence[Round], arm: int) -> Start:
        return Start(arm, len(complete), self.turn_seconds(complete))

    def _order(self, arms: Sequence[int], *place: int) -> list[int]:
        """Returns the arms in an order that is random, but the same for each place in a race."""
        return random.Random(f"{self.seed} {place}").sample(arms, len(arms))


def turn_seconds(
    step_seconds: float, shortest: float = MIN_TURN_SECONDS, longest: float = MAX_TURN_SECONDS
) -> float:
    """Returns how long a turn is that is long enough for some steps."""
    return max(min(max(shortest, STEPS_PER_TURN * step_seconds), longest), MIN_STEPS * step_seconds)


def keeps_failing(rounds: Sequence[Round], arm: int) -> bool:
    """Returns whether the latest processes of an arm have failed, while those of the baseline have not."""
    lives = [one.lives[arm] for one in rounds if arm in one.lives and BASELINE in one.speeds]
    return len(lives) >= MAX_FAILURES and not any(life.turns for life in lives[-MAX_FAILURES:])


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
    pairs = (log_ratios(one, arm) for one in complete for arm in one.lives if arm != BASELINE)
    return [logs for logs in pairs if len(logs) > 1]


def _variance_of_turns(complete: Sequence[Round]) -> float | None:
    """Returns the variance of turns within pairs of processes; None if no pair has two turns."""
    pairs = _pairs(complete)
    return statistics.fmean(variance(logs) for logs in pairs) if pairs else None


def _variance_of_pairs(complete: Sequence[Round], within: float) -> float:
    """Returns the variance between pairs of processes, without that of their turns."""
    total, freedom = USUAL_FREEDOM * USUAL_VARIANCE, USUAL_FREEDOM
    for arm in set(itertools.chain.from_iterable(round_.lives for round_ in complete)) - {BASELINE}:
        pairs = [logs for round_ in complete if (logs := log_ratios(round_, arm))]
        if len(pairs) > 1:
            spread = variance([statistics.fmean(logs) for logs in pairs])
            spread -= within * statistics.fmean(1 / len(logs) for logs in pairs)
            total += (len(pairs) - 1) * max(0.0, spread)
            freedom += len(pairs) - 1
    return total / freedom


def _mean_turn_seconds(complete: Sequence[Round]) -> float:
    turns = [turn.seconds for round_ in complete for life in round_.lives.values() for turn in life.turns]
    return statistics.fmean(turns) if turns else 0.0


def _mean_start_seconds(complete: Sequence[Round]) -> float:
    return statistics.fmean(life.started.seconds for round_ in complete for life in round_.lives.values())
