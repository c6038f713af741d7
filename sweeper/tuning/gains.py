"""Computes what each change of a tune brings, from the log of its race."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sweeper.core.measurement import Measurement
from sweeper.core.record import BASELINE
from sweeper.exports import verification
from sweeper.race.log import Round
from sweeper.race.policy import MAX_FAILURES
from sweeper.race.tally import Tally
from sweeper.script.changes import CHANGES
from sweeper.sweep.folder.journal import FINAL_RACE
from sweeper.sweep.folder.load import LoadedSweep
from sweeper.tuning.changes import ChangeValue
from sweeper.tuning.contests import REFUSED, Contest, Members, RaceState
from sweeper.tuning.lives import FIRST_RACE
from sweeper.tuning.policy import TunePolicy

MIN_START_SECONDS = 1.0
"""Smallest difference of two starts that is worth a word."""

Interval = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupGain:
    """What changes bring that were only measured together.

    Attributes:
        members: The changes.
        alone: The ratio of the script with nothing else changed to the script as it is, with the 95%
            interval; None if that was not measured.
        stacked: The ratio of an arm with them to the same arm without them; None if that was not measured.
    """

    members: Members
    alone: Interval | None = None
    stacked: Interval | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeGain:
    """What one change brings.

    Attributes:
        alone: The ratio of the script with nothing else changed to the script as it is, with the 95%
            interval; None if that was not measured.
        stacked: The ratio of an arm with it to the same arm without it; None if that was not measured.
        together: What it brings with the changes that it joined with; None where it was measured without
            them, or not at all.
        is_kept: Whether the winner has it.
        is_unfit: Whether the winner does not have it, but an arm that did not train the same in the end.
    """

    name: str
    value: str
    alone: Interval | None
    stacked: Interval | None
    together: GroupGain | None = None
    is_kept: bool
    is_unfit: bool = False


def gains_of(sweep: LoadedSweep) -> list[ChangeGain]:
    """Returns the gain of each change of a tune that was tried; empty if arms did not join a race."""
    state = _state(sweep)
    winner = sweep.confirmation.winner
    kept = state.members(winner) if winner is not None else frozenset()
    failed = [state.members(arm) for arm in sweep.confirmation.infeasible]
    measured = [contest for contest in state.contests.values() if contest.outcome != REFUSED]
    later = sweep.journal.rounds(FINAL_RACE)
    pairs = [(contest.members, _ratio(sweep, state, contest.arm)) for contest in measured]
    ratios = {members: ratio for members, ratio in pairs if ratio is not None}
    gains = []
    for word in dict.fromkeys(word for contest in measured for word in sorted(contest.members)):
        name, _, value = word.partition("=")
        alone = ratios.get(frozenset({word}))
        change = frozenset({word})
        stacked = _interval(state.gain_of(change, later)) if _is_on_top(state, change) else None
        gain = ChangeGain(
            name=name,
            value=value,
            alone=alone,
            stacked=stacked,
            together=None if alone or stacked else _together(state, word, ratios, later),
            is_kept=word in kept,
            is_unfit=word not in kept and any(word in members for members in failed),
        )
        gains.append(gain)
    return gains


def _together(
    state: RaceState, word: str, ratios: Mapping[Members, Interval], later: Sequence[Round]
) -> GroupGain | None:
    """Returns what a change brings with those that it joined with; None if that was not measured.

    Args:
        ratios: Ratios of arms to the script as it is.
        later: Rounds of the race at the end.
    """
    group = state.joined_together(word)
    if stacked := _interval(state.gain_of(group, later)):
        return GroupGain(members=group, stacked=stacked)
    pairs = (GroupGain(members=members, alone=ratio) for members, ratio in ratios.items() if word in members)
    return next(pairs, None)


def _is_on_top(state: RaceState, words: Members) -> bool:
    """Returns whether arms that have other changes, too, show what some changes bring."""
    pairs = ((contest.members, state.members(contest.reference)) for contest in state.contests.values())
    return any(members and others and members ^ others == words for members, others in pairs)


def _ratio(sweep: LoadedSweep, state: RaceState, arm: int) -> Interval | None:
    """Returns an arm's ratio to the script as it is: that of new processes, if there were any."""
    ratio = next((ratio for ratio in sweep.confirmation.ratios if ratio.trial == arm), None)
    if ratio is None:
        return _interval(Tally.of(state.rounds, arm))
    return (ratio.ratio, ratio.low, ratio.high) if ratio.has_interval else (ratio.ratio, 0.0, math.inf)


def largest_gain(sweep: LoadedSweep) -> float | None:
    """Returns the largest ratio to the script's own speed that a tune's measurements still allow."""
    state = _state(sweep)
    highs = []
    for contest in state.contests.values():
        ratio = _ratio(sweep, state, contest.arm) if contest.outcome != REFUSED else None
        if ratio is not None and math.isfinite(ratio[2]):
            highs.append(ratio[2])
        elif ratio is not None:
            highs.append(math.exp(Tally.of(state.rounds, contest.arm).interval()[1]))
    return max(highs, default=None)


def untried_changes(sweep: LoadedSweep, changes: Sequence[ChangeValue]) -> list[ChangeValue]:
    """Returns the changes that a race could have tried, and that no arm had of which anything is known."""
    state = _state(sweep)
    contests = [contest for contest in state.contests.values() if _is_known(state, contest)]
    names = {word.partition("=")[0] for contest in contests for word in contest.requested}
    return [change for change in changes if not change.refused and change.name not in names]


def add_refusals(sweep: LoadedSweep, changes: Sequence[ChangeValue]) -> list[ChangeValue]:
    """Returns the changes; those that a race has refused have the reason."""
    state = _state(sweep)
    winner = sweep.confirmation.winner
    kept = state.members(winner) if winner is not None else frozenset()
    why: dict[str, str] = {}
    for contest in state.contests.values():
        verified = contest.verified
        for text in verified.missing if verified is not None else ():
            name, _, reason = text.partition(": ")
            why.update({word: reason for word in contest.requested if word.partition("=")[0] == name})
        if verified is None or not verified.fault or verified.is_open or state.is_smaller(contest):
            continue
        if len(words := state.difference(contest)) == 1:
            why.update(dict.fromkeys(words, verified.fault))
    for arm in sweep.confirmation.infeasible:
        check = verification.read(sweep.table.records[arm])
        if check is not None and check.difference and len(words := state.members(arm) - kept) == 1:
            why.update(dict.fromkeys(words, check.difference))
    return [
        dataclasses.replace(change, refused=change.refused or why[change.word_of_arm])
        if change.word_of_arm in why and change.word_of_arm not in kept
        else change
        for change in changes
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCost:
    """What the changes of a winner cost when the script starts, such as collating its data.

    Attributes:
        first: Seconds by which the first process starts later than the script as it is.
        later: Seconds by which later ones do, for which something was kept.
        samples: Samples after which the first one has caught up.
    """

    first: float
    later: float
    samples: float


def start_cost(sweep: LoadedSweep, winner: int) -> StartCost | None:
    """Returns what the changes of a winner cost when the script starts; None if that is next to nothing."""
    state, records = _state(sweep), sweep.table.records
    base, best = records[BASELINE].measurement, records[winner].measurement
    if base is None or best is None or not base.throughput < best.throughput:
        return None
    members = state.members(winner)
    slow = {name for name, change in CHANGES.items() if change.limit_seconds}
    alike = [
        measurement
        for arm in state.contests
        if (shared := state.members(arm) & members)
        and not {word for word in state.members(arm) - shared if word.partition("=")[0] in slow}
        and arm in records
        and (measurement := records[arm].measurement) is not None
    ]
    first = max(map(_start, alike), default=_start(best)) - _start(base)
    if first < MIN_START_SECONDS:
        return None
    saved = 1 / base.throughput - 1 / best.throughput
    return StartCost(first=first, later=max(0.0, _start(best) - _start(base)), samples=first / saved)


def _start(measured: Measurement) -> float:
    return measured.startup_seconds + measured.first_step_seconds


def _is_known(state: RaceState, contest: Contest) -> bool:
    """Returns whether an arm was measured, or is known not to train the same, or to fail again and again."""
    verified = contest.verified
    is_other = verified is not None and bool(verified.missing or (verified.fault and not verified.is_failure))
    is_measured = bool(Tally.of(state.rounds, contest.arm).logs)
    return is_other or is_measured or contest.num_failed >= MAX_FAILURES


def has_failed(sweep: LoadedSweep) -> bool:
    """Returns whether an arm of a race could not be measured."""
    contests = _state(sweep).contests.values()
    return any(contest.outcome == REFUSED and contest.num_failed >= MAX_FAILURES for contest in contests)


def has_refused(sweep: LoadedSweep) -> bool:
    """Returns whether a race has refused an arm because it trains differently."""
    events = [contest.verified for contest in _state(sweep).contests.values()]
    return any(event is not None and event.fault and not event.is_failure for event in events)


def _state(sweep: LoadedSweep) -> RaceState:
    log = sweep.journal.race_events(FIRST_RACE)
    return TunePolicy(candidates=(), seconds=math.inf).state(log, is_final=True)


def _interval(tally: Tally) -> Interval | None:
    if not tally.logs:
        return None
    low, high = tally.interval() if tally.carries_interval else (-math.inf, math.inf)
    return math.exp(tally.mean), math.exp(low), math.exp(high)
