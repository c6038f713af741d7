"""Decides what a tune tries next, from its log alone: the same log always leads to the same end.

    baseline ─► all exact changes together ─► [its parts, if that fails] ─► each close change, added to the
    leader ─► environment variables, added to it together ─► the leader without what may bring nothing

The script's steps do not show what environment variables could bring. They are in the first arm if nothing
else that is exact could bring much.

The baseline, the leader and a challenger live at the same time if there is room, and take turns. Each arm is
compared with its reference, which was the leader when the arm was added. One process of each tells 8%, so
what leads in the end is raced once more, with new processes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from sweeper.race.log import BASELINE, Added, Ended, Event, Life, Round, Started, Turned, Verified, rounds_of
from sweeper.race.policy import MAX_FAILURES, Action, Done, End, Start, Turn
from sweeper.race.tally import Tally
from sweeper.script.changes.change import EXACT
from sweeper.tuning.contests import (
    LOST,
    REFUSED,
    WON,
    Candidate,
    Contest,
    Members,
    RaceState,
    laps,
    middle,
)
from sweeper.tuning.timetable import MIN_LAPS, TURNS_ALONE, Timetable, latest_turn_seconds, mean_start_seconds

MIN_GAIN = math.log(1.02)
"""Log of the smallest gain for which a change joins the leader."""
MIN_CEILING, HIGH_CEILING = 1.02, 1.1
"""Smallest ratio that a change must be able to reach to be tried, and to be tried early where it has failed
with others."""
OPEN_LAPS = 2
"""Turns of a challenger before it is known whether the baseline repeats itself: they give a first number."""
FEW_LAPS, MAX_LAPS = 2, 6
"""Turns of each process before a challenger that is far off is decided upon, and at most."""
FAR = math.log(1.5)
"""Log of a ratio that is far off."""
CLEAR = 2.0
"""Standard errors, as far as turns cause them, by which a challenger must differ from the smallest gain."""
MAX_PARTS = 6
"""Largest number of changes that are tried one by one after they have failed together; more are halved."""
MAX_DOUBTS = 2
"""Changes of the leader at most that the race at the end leaves out, one at a time."""
MAX_SHORT_ROUNDS = 4
"""Rounds in a row that end before the baseline has taken a turn."""

TRIED, TIME, FAILED = "everything was tried", "the time is up", "the baseline cannot be measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class TunePolicy:
    """The rules of a tune.

    Attributes:
        candidates: What may be tried, in order.
        seconds: The time limit, with that of the race at the end.
        last_seconds: Seconds for what is no race: the report, and taking the baseline's steps apart.
        seed: Decides the order of the turns.
    """

    candidates: tuple[Candidate, ...]
    seconds: float
    last_seconds: float = 0.0
    seed: int = 0

    @property
    def timetable(self) -> Timetable:
        """How long the parts of the tune take."""
        return Timetable(candidates=self.candidates, seconds=self.seconds, last_seconds=self.last_seconds)

    # -- what happens next -------------------------------------------------------------------------

    def next(self, log: Sequence[Event], at: float) -> Action:
        """Returns what to do next, `at` seconds after the tune has begun."""
        state = self.state(log)
        now = state.rounds[-1] if state.rounds else Round()
        alive = [life for life in now.lives.values() if not life.is_over]
        challenger = state.challenger
        needed = dict.fromkeys((BASELINE, state.leader, challenger.arm if challenger else BASELINE))
        proposal = self._proposal(state, at) if challenger is None else None
        why = proposal if isinstance(proposal, str) else self._why_over(state, now, alive, needed, at)
        if why:
            return End(_last_process(alive)) if alive else Done(why)
        members = proposal if isinstance(proposal, frozenset) else None
        if now.is_in_company is False:
            return self._next_alone(state, now, alive, needed, members)
        return self._next_in_company(log, state, now, alive, needed, members)

    def _why_over(
        self, state: RaceState, now: Round, alive: Sequence[Life], needed: Collection[int], at: float
    ) -> str:
        """Returns why the race is over although there is something left to try; empty if it is not.

        Args:
            needed: The arms that take turns: the baseline, the leader and the challenger.
        """
        rounds, challenger = state.rounds, state.challenger
        if challenger is not None and self._is_late(state, at + latest_turn_seconds(rounds)):
            return TIME
        if alive:
            return ""
        if _num_short(rounds) >= MAX_SHORT_ROUNDS and not (challenger and _is_open(challenger)):
            return FAILED
        num_starts = len(needed)
        if now.is_in_company is False and challenger is not None:
            # What has had its turns does not start again.
            num_starts = max(1, sum(arm not in now.lives for arm in needed))
        is_late = bool(rounds) and self._is_late(state, at + num_starts * mean_start_seconds(rounds))
        return TIME if is_late else ""

    def _next_in_company(
        self,
        log: Sequence[Event],
        state: RaceState,
        now: Round,
        alive: Sequence[Life],
        needed: Collection[int],
        proposal: Members | None,
    ) -> Action:
        """Returns what to do next where processes live at the same time, and take turns."""
        challenger, number = state.challenger, len(state.rounds)
        unneeded = [life for life in alive if life.arm not in needed]
        if unneeded:
            return End(_last_process(unneeded))
        if not alive:
            return self._start(state, BASELINE, number)
        over = [now.lives[arm] for arm in needed if arm in now.lives and now.lives[arm].is_over]
        if behind := [life for life in alive if _is_behind(life, over)]:
            # A training may be shorter than its turns: then, its only ones are compared.
            return Turn(behind[0].number)
        # A challenger that has failed at once starts again beside the others.
        failed = challenger.arm if challenger is not None and challenger.num_failed else -1
        is_broken = any(life.arm != failed or life.is_crowded for life in over)
        if is_broken or _needs_repeat(state, now) or _is_still_open(state, now):
            return End(_last_process(alive))
        missing = [
            arm for arm in needed if arm not in now.lives or (arm == failed and now.lives[arm].is_over)
        ]
        if missing:
            return self._start(state, missing[0], number - 1)
        if challenger is None:
            assert proposal is not None
            return self._add(state, proposal, number - 1)
        return Turn(self._next_in_lap(log, alive))

    def _next_alone(
        self,
        state: RaceState,
        now: Round,
        alive: Sequence[Life],
        needed: Collection[int],
        proposal: Members | None,
    ) -> Action:
        """Returns what to do next where one process takes its turns before the next one starts."""
        if alive:
            (life,) = alive
            contest = state.contests.get(life.arm)
            is_refused = contest is not None and contest.outcome == REFUSED
            is_over = is_refused or len(life.turns) >= TURNS_ALONE
            return End(life.number) if is_over else Turn(life.number)
        number = len(state.rounds)
        has_baseline = BASELINE in now.lives and bool(now.lives[BASELINE].turns)
        if not has_baseline or _needs_repeat(state, now) or _is_still_open(state, now):
            return self._start(state, BASELINE, number)
        if missing := [arm for arm in needed if arm not in now.lives]:
            return self._start(state, missing[0], number - 1)
        if state.challenger is None:
            assert proposal is not None
            return self._add(state, proposal, number - 1)
        # Its process has failed, or has ended before its first turn.
        return self._start(state, BASELINE, number)

    def _start(self, state: RaceState, arm: int, number: int) -> Start:
        members = tuple(sorted(state.contests[arm].requested)) if arm in state.contests else ()
        return Start(arm, number, latest_turn_seconds(state.rounds), members)

    def _add(self, state: RaceState, members: Members, number: int) -> Start:
        arm = len(state.contests) + 1
        return Start(arm, number, latest_turn_seconds(state.rounds), tuple(sorted(members)), state.leader)

    def _next_in_lap(self, log: Sequence[Event], alive: Sequence[Life]) -> int:
        """Returns the next process in a lap, in which each one takes a turn."""
        in_lap: set[int] = set()
        for event in log:
            if isinstance(event, Started):
                in_lap = set()
            elif isinstance(event, Turned):
                in_lap = {event.life} if event.life in in_lap else {*in_lap, event.life}
        numbers = [life.number for life in alive]
        waiting = [number for number in numbers if number not in in_lap] or numbers
        num_starts = sum(isinstance(event, Started) for event in log)
        num_turns = sum(len(life.turns) for life in alive)
        return random.Random(f"{self.seed} {num_starts} {num_turns}").choice(sorted(waiting))

    def is_complete(self, log: Sequence[Event]) -> bool:
        """Returns whether no process is alive."""
        return all(life.is_over for one in rounds_of(log)[-1:] for life in one.lives.values())

    # -- how it stands -----------------------------------------------------------------------------

    def state(self, log: Sequence[Event], *, is_final: bool = False) -> RaceState:
        """Returns how a tune stands.

        Args:
            is_final: Whether no more turns follow, so that those there are decide.
        """
        state = RaceState(rounds_of(log), {})
        arms = {event.life: event.arm for event in log if isinstance(event, Started)}
        # A contest is decided before the next arm is added: turns that follow do not decide it anew.
        until: dict[int, Sequence[Round]] = {}
        for place, event in enumerate(log):
            if isinstance(event, Added):
                until[event.arm - 1] = rounds_of(log[:place])
                contest = Contest(event.arm, event.reference, frozenset(event.members))
                state.contests[event.arm] = contest
            elif isinstance(event, Ended) and (entry := state.contests.get(arms[event.life])):
                if not event.is_crowded:
                    entry.num_failed = entry.num_failed + 1 if event.is_failed else 0
            elif isinstance(event, Verified) and (entry := state.contests.get(arms[event.life])):
                if event.is_failure and entry.verified is not None and not entry.verified.is_failure:
                    # What an earlier process has shown still holds.
                    continue
                entry.verified = event
                reasons = dict(text.partition(": ")[::2] for text in event.missing)
                entry.missing = frozenset(w for w in entry.requested if w.partition("=")[0] in reasons)
                state.out |= {one.word for one in self.candidates if one.is_impossible(reasons)}
        for contest in state.contests.values():
            reference = state.contests.get(contest.reference)
            if reference is not None and reference.outcome == REFUSED:
                contest.outcome = REFUSED
                continue
            rounds = until.get(contest.arm, state.rounds)
            is_over = is_final or contest.arm in until
            contest.outcome = self._outcome(state, contest, rounds, is_final=is_over)
            state.out |= contest.missing
            self._conclude(state, contest)
        return state

    def _conclude(self, state: RaceState, contest: Contest) -> None:
        """Adds what follows from the outcome of a contest."""
        words, is_smaller = state.difference(contest), state.is_smaller(contest)
        if not contest.outcome:
            state.challenger = contest
        elif contest.outcome == WON:
            state.leader = contest.arm
            if is_smaller:
                state.out |= words
        elif is_smaller:
            return
        elif len(words) > 1 and self._hides_something(state, contest):
            state.split = [*self._parts(words), *state.split]
        else:
            state.out |= words

    def _hides_something(self, state: RaceState, contest: Contest) -> bool:
        """Returns whether parts of what has failed together may still pay.

        It is slower, or does not run, or should be faster for all that one of them could save.
        """
        if contest.outcome == REFUSED:
            return True
        user_words = {one.word for one in self.candidates if one.is_own}
        if self._highest_ceiling(state.difference(contest) - user_words) >= HIGH_CEILING:
            return True
        return Tally.of(state.rounds, contest.arm, contest.reference).mean < -MIN_GAIN

    def _parts(self, words: Members) -> list[Members]:
        """Returns the parts of what has failed together, those with the largest ceilings first."""
        order = sorted(words, key=lambda word: (-self._ceiling(word), word))
        if len(order) <= MAX_PARTS:
            return [frozenset({word}) for word in order]
        middle = len(order) // 2
        return [frozenset(order[:middle]), frozenset(order[middle:])]

    def _ceiling(self, word: str) -> float:
        return next((one.ceiling for one in self.candidates if one.word == word), math.inf)

    def _outcome(self, state: RaceState, contest: Contest, rounds: Sequence[Round], *, is_final: bool) -> str:
        """Returns the outcome of a contest; empty while it is open.

        Args:
            rounds: The rounds until the next arm was added.
        """
        verified = contest.verified
        if verified is not None and verified.is_failure:
            verified = None
        if verified is not None and not state.difference(contest):
            return REFUSED
        if verified is not None and verified.fault and not verified.is_open:
            return REFUSED
        if contest.num_failed >= MAX_FAILURES:
            return REFUSED
        tally = Tally.of(rounds, contest.arm, contest.reference)
        threshold = -MIN_GAIN if state.is_smaller(contest) else MIN_GAIN
        if verified is None or verified.is_open or not tally.logs:
            return REFUSED if is_final else ""
        if not is_final and not _is_decided(rounds, contest, tally, threshold):
            return ""
        return WON if middle(rounds, contest) >= threshold else LOST

    # -- what is tried next ------------------------------------------------------------------------

    def _proposal(self, state: RaceState, at: float) -> Members | str:
        """Returns the changes of the next arm, or why there is none."""
        why, latest = TRIED, self.timetable.latest_final(state, self._num_finalists(state))
        for members in self.proposals(state):
            if not state.contests and at < self.seconds:
                return members
            if at + self.timetable.arm_seconds(state, members) <= latest:
                return members
            why = TIME
        return why

    def proposals(self, state: RaceState) -> Iterator[Members]:
        """Yields the changes of arms that may come next, in order."""
        leading = state.members(state.leader)
        past_members = {contest.requested for contest in state.contests.values()} | {frozenset(), leading}
        for members in self._raw_proposals(state, leading):
            if members not in past_members:
                past_members.add(members)
                yield members

    def _raw_proposals(self, state: RaceState, leading: Members) -> Iterator[Members]:
        candidates = [one for one in self.candidates if one.ceiling >= MIN_CEILING]
        exact = [one for one in candidates if one.kind == EXACT and not one.rank]
        if not state.contests:
            yield self._first_members(exact)
        parts = [part - state.out for part in state.split]
        yield from (leading | part for part in parts if self._highest_ceiling(part) >= HIGH_CEILING)
        requested = {word for contest in state.contests.values() for word in contest.requested}
        user_words = {one.word for one in exact if one.is_own}
        if not user_words & requested:
            yield leading | user_words
        names = {word.partition("=")[0] for word in leading}
        ready = [one for one in candidates if one.word not in state.out and one.name not in names]
        ready = [one for one in ready if self._is_due(state, one)]
        ready = [one for one in ready if one.rank or one.kind != EXACT]
        ready.sort(key=lambda one: one.kind != EXACT)
        environment = {one.word for one in exact if one.is_of_environment and not one.is_own} - requested
        if not leading:
            # It runs in any case, and gives a number.
            yield frozenset(environment)
        yield from (leading | {one.word} for one in ready if not one.seconds)
        yield leading | environment
        yield from (leading | {one.word} for one in ready if one.seconds)
        yield from (leading | part for part in parts)
        yield from self._drop_doubts(state, leading)

    def _first_members(self, exact: Sequence[Candidate]) -> Members:
        """Returns the changes of the first arm."""
        words = frozenset(one.word for one in exact if not one.is_own)
        measured = words - {one.word for one in exact if one.is_of_environment}
        return measured if self._highest_ceiling(measured) >= HIGH_CEILING else words

    def _highest_ceiling(self, words: Members) -> float:
        return max(map(self._ceiling, words), default=0.0)

    def _is_due(self, state: RaceState, candidate: Candidate) -> bool:
        """Returns whether all values of its parameter that come before it have failed."""
        return all(
            other.word in state.out
            for other in self.candidates
            if other.name == candidate.name and other.rank < candidate.rank
        )

    def _drop_doubts(self, state: RaceState, leading: Members) -> Iterator[Members]:
        """Yields the leader without what may bring nothing: all of it at once, then one by one."""
        doubts = self.doubts(state)
        unknown = [words for words in doubts if not state.gain_of(words).logs]
        if len(unknown) > 2:
            # The one that may bring most is hardly among them.
            yield leading.difference(*unknown[:-1])
        for words in doubts:
            yield leading - words

    def doubts(self, state: RaceState) -> list[Members]:
        """Returns what of the leader is not shown to pay, the most doubtful first.

        It is looked at change by change, and as it joined.
        """
        leading = state.members(state.leader)
        alone = [frozenset({word}) for word in sorted(leading)]
        together = dict.fromkeys(state.joined_together(word) & leading for word in sorted(leading))
        groups = [words for words in together if len(words) > 1]
        doubts = [words for words in [*alone, *groups] if words < leading and not state.pays(words)]

        def gain(words: Members) -> tuple[float, float]:
            tally = state.gain_of(words)
            return (tally.mean if tally.logs else -math.inf), self._highest_ceiling(words)

        return sorted(doubts, key=gain)

    def _final_rivals(self, state: RaceState) -> list[Members]:
        """Returns the arms that the leader is raced with at the end.

        These are the leader without each change that is not shown to pay, and the last leader of exact
        changes alone: it is handed over if the leader turns out to train differently.
        """
        leading = state.members(state.leader)
        past_members = {contest.members for contest in state.contests.values()}
        without = [leading - words for words in self.doubts(state)]
        others = [members for members in without if members in past_members][:MAX_DOUBTS]
        exact = {one.word for one in self.candidates if one.kind == EXACT}
        if not leading <= exact:
            led = [one.members for one in state.contests.values() if one.outcome == WON]
            others += [members for members in led if members <= exact][-1:]
        return list(dict.fromkeys(others))

    def _num_finalists(self, state: RaceState) -> int:
        return 1 + len(self._final_rivals(state))

    def _is_late(self, state: RaceState, at: float) -> bool:
        """Returns whether there is no time for more turns."""
        return self.timetable.is_late(state, at, self._num_finalists(state))

    def finalists(self, log: Sequence[Event]) -> list[Members]:
        """Returns the changes of the arms that are raced at the end, the best so far first.

        If the baseline leads, it is the arm that comes closest to it.
        """
        state = self.state(log, is_final=True)
        if state.leader != BASELINE:
            return [state.members(state.leader), *self._final_rivals(state)]
        verified = [one for one in state.contests.values() if one.outcome == LOST]
        tallies = {one.members: Tally.of(state.rounds, one.arm) for one in verified}
        arms = [members for members, tally in tallies.items() if tally.logs]
        return [max(arms, key=lambda members: tallies[members].mean)] if arms else []


def _is_open(contest: Contest) -> bool:
    return contest.verified is not None and contest.verified.is_open


def _is_behind(life: Life, over: Sequence[Life]) -> bool:
    """Returns whether one that has ended by itself took a turn in a lap in which a process has taken none."""
    latest = max((one.laps[-1] for one in over if one.laps), default=-1)
    return (life.laps[-1] if life.laps else -1) < latest


def _needs_repeat(state: RaceState, now: Round) -> bool:
    """Returns whether another process of the baseline must show if the script repeats itself."""
    challenger = state.challenger
    if challenger is None or not _is_open(challenger) or challenger.arm not in now.lives:
        return False
    life = now.lives[challenger.arm]
    return life.is_over or len(life.turns) >= OPEN_LAPS


def _is_still_open(state: RaceState, now: Round) -> bool:
    """Returns whether another process of the baseline has not shown if the script repeats itself.

    The next one may.
    """
    challenger = state.challenger
    return challenger is not None and _is_open(challenger) and challenger.arm not in now.lives


def _last_process(alive: Sequence[Life]) -> int:
    """Returns the process that ends first: the one that was started last."""
    return max(life.number for life in alive)


def _num_short(rounds: Sequence[Round]) -> int:
    """Returns how many of the latest rounds had no turn of the baseline, kills not counted."""
    count = 0
    for one in reversed(rounds):
        if BASELINE in one.speeds:
            break
        count += not any(life.is_cut_off for life in one.lives.values())
    return count


def _is_decided(rounds: Sequence[Round], contest: Contest, tally: Tally, threshold: float) -> bool:
    """Returns whether more turns of the same processes would hardly change the outcome of a contest."""
    if not tally.is_in_turns:
        # It ran alone.
        lives = [one.lives[contest.arm] for one in rounds if contest.arm in one.lives]
        return any(life.is_over and life.turns for life in lives)
    num_turns = sum(
        len({*one.lives[contest.arm].laps} & {*one.lives[contest.reference].laps})
        for one in rounds
        if {contest.arm, contest.reference} <= one.lives.keys()
    )
    off = abs(middle(rounds, contest) - threshold)
    nearest = min(abs(log - threshold) for log in laps(rounds, contest))
    if num_turns >= MAX_LAPS or (num_turns >= FEW_LAPS and nearest > FAR):
        return True
    error = math.sqrt(sum(tally.turn_variances)) / max(1, len(tally.turn_variances))
    return num_turns >= MIN_LAPS and off > CLEAR * error
