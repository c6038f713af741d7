"""Keeps how the arms of a tune stand: what each changes, what it is compared with, and what came of it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sweeper.race.log import BASELINE, Round, Verified
from sweeper.race.tally import Tally, log_ratios

WON, LOST, REFUSED = "won", "lost", "refused"

Members = frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A value of a change that may be tried.

    Attributes:
        name: Its parameter. An arm has at most one value of each.
        word: `name=value`.
        kind: How it changes the training, as declared.
        ceiling: Largest ratio to the baseline's speed that it may reach.
        rank: Number of values of its parameter that come before it, and must have failed.
        seconds: Seconds that a process may take longer to start with it.
        shared_refusals: Reasons for which no value of its parameter is possible if one is not.
        is_of_environment: Whether environment variables alone make it, so that its ceiling is a guess.
        is_own: Whether it is the user's own.
        is_half: Whether it computes in half precision, so that more runs with other seeds may be needed.
    """

    name: str
    word: str
    kind: str
    ceiling: float = math.inf
    rank: int = 0
    seconds: float = 0.0
    shared_refusals: frozenset[str] = frozenset()
    is_of_environment: bool = False
    is_own: bool = False
    is_half: bool = False

    def is_impossible(self, reasons: Mapping[str, str]) -> bool:
        """Returns whether what was said against other values holds for it, too.

        Args:
            reasons: Why changes are not in effect, by their names.
        """
        return reasons.get(self.name) in self.shared_refusals


@dataclass(slots=True)
class Contest:
    """An arm beside the baseline, and how it compares with its reference.

    Attributes:
        requested: The words of what it was to change.
        missing: Those of them that are not in effect.
        verified: What is known about its training; None before that.
        num_failed: Number of its latest processes that have failed before their first turn.
        outcome: `WON`, `LOST` or `REFUSED`; empty while it is open.
    """

    arm: int
    reference: int
    requested: Members
    missing: Members = frozenset()
    verified: Verified | None = None
    num_failed: int = 0
    outcome: str = ""

    @property
    def members(self) -> Members:
        """The words of what it changes."""
        return self.requested - self.missing


def laps(rounds: Sequence[Round], contest: Contest) -> list[float]:
    """Returns the log ratios of an arm to its reference, lap by lap."""
    return [log for one in rounds for log in log_ratios(one, contest.arm, contest.reference)]


def middle(rounds: Sequence[Round], contest: Contest) -> float:
    """Returns the log of an arm's ratio to its reference: of turns, the median.

    A turn may hold the end of an epoch, where workers start and checkpoints are written, and be ten times as
    slow as the others.
    """
    tally = Tally.of(rounds, contest.arm, contest.reference)
    return statistics.median(laps(rounds, contest)) if tally.is_in_turns else tally.mean


@dataclass(slots=True)
class RaceState:
    """How a tune stands.

    Attributes:
        rounds: The rounds so far, the unfinished one included.
        contests: All arms but the baseline, in order.
        leader: The best arm so far.
        challenger: The arm whose contest is open.
        out: The words that are not tried again.
        split: Sets of words that failed together, to be tried as parts.
    """

    rounds: Sequence[Round]
    contests: dict[int, Contest]
    leader: int = BASELINE
    challenger: Contest | None = None
    out: set[str] = field(default_factory=set)
    split: list[Members] = field(default_factory=list)

    def members(self, arm: int) -> Members:
        """Returns the words of what an arm changes."""
        return self.contests[arm].members if arm in self.contests else frozenset()

    def is_smaller(self, contest: Contest) -> bool:
        """Returns whether an arm is its reference without something."""
        return contest.members < self.members(contest.reference)

    def difference(self, contest: Contest) -> Members:
        """Returns the words in which an arm differs from its reference."""
        return contest.members ^ self.members(contest.reference)

    def gain_of(self, words: Members, later: Sequence[Round] = ()) -> Tally:
        """Returns the log ratios of arms with some words to the same arms without them.

        Args:
            later: Rounds of the same arms in another race.
        """
        logs: list[float] = []
        variances: list[float] = []
        is_in_turns = True
        for contest in self.contests.values():
            if contest.outcome not in (WON, LOST) or self.difference(contest) != words:
                continue
            pair = contest.arm, contest.reference
            tally = Tally.of([*self.rounds, *later], *(pair[::-1] if self.is_smaller(contest) else pair))
            logs += tally.logs
            variances += tally.turn_variances
            is_in_turns = is_in_turns and tally.is_in_turns
        return Tally(logs, variances, is_in_turns=is_in_turns)

    def pays(self, words: Members) -> bool:
        """Returns whether it is shown that some words make an arm faster."""
        return self.gain_of(words).interval()[0] > 0

    def joined_together(self, word: str) -> Members:
        """Returns the words that a word has joined another arm's with; empty if it was in the first arm."""
        for contest in self.contests.values():
            is_on_top = self.members(contest.reference) < contest.members
            if is_on_top and contest.reference != BASELINE and word in self.difference(contest):
                return self.difference(contest)
        return frozenset()
