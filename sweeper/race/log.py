"""The log of a race: what happened, in order. Everything that is known of a race follows from it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

BASELINE = 0
"""The arm that the others are compared with."""


@dataclass(frozen=True, slots=True)
class Started:
    """A process of an arm is warm, and rests.

    Attributes:
        life: Number of the process, from 0 on.
        at: Seconds since the race began, as in all events.
        seconds: Time that its start took, with its warm-up.
        round: Number of the round that it belongs to, from 0 on.
    """

    life: int
    arm: int
    at: float
    seconds: float
    round: int = 0


@dataclass(frozen=True, slots=True)
class Added:
    """An arm takes part that was not there from the beginning.

    Attributes:
        members: What it changes.
        reference: The arm that it is compared with first.
    """

    arm: int
    at: float
    members: tuple[str, ...]
    reference: int = BASELINE


@dataclass(frozen=True, slots=True)
class Verified:
    """It is known whether a process trains as the baseline does.

    Attributes:
        fault: What differs first; empty if nothing does.
        extent: What was compared, in words.
        kind: Whether it is equal in every bit, up to rounding, or up to its random draws.
        missing: The members that are not in effect, each as `name: why`.
        is_open: Whether another process of the baseline has to show if it repeats itself.
        is_failure: Whether the fault is that it has failed, which another process may not.
    """

    life: int
    at: float
    fault: str = ""
    extent: str = ""
    kind: str = ""
    missing: tuple[str, ...] = ()
    is_open: bool = False
    is_failure: bool = False


@dataclass(frozen=True, slots=True)
class Company:
    """Whether a process of each arm may live at the same time."""

    is_possible: bool
    at: float


@dataclass(frozen=True, slots=True)
class Turned:
    """A process has taken a turn: whole steps, while the other arms rest.

    Attributes:
        foreign: Cores that other programs used meanwhile.
    """

    life: int
    at: float
    seconds: float
    steps: int
    samples: float
    foreign: float = 0.0


@dataclass(frozen=True, slots=True)
class Ended:
    """A process has ended, by itself or because it was told to.

    Attributes:
        is_failed: Whether it has failed, so that its turns do not count.
        is_crowded: Whether it has failed because others were there, for want of memory or of a port.
        is_cut_off: Whether it was still there when the race itself was ended, by a kill.
    """

    life: int
    at: float
    is_failed: bool = False
    is_crowded: bool = False
    is_cut_off: bool = False


Event = Started | Added | Verified | Company | Turned | Ended


@dataclass(slots=True)
class Life:
    """One process of an arm, as the log tells it.

    Attributes:
        laps: The lap of each of its turns: in a lap, each process that is alive takes one.
        is_crowded: Whether it has failed because others were there.
        is_cut_off: Whether it was still there when the race itself was ended.
    """

    number: int
    arm: int
    started: Started
    turns: list[Turned] = field(default_factory=list)
    laps: list[int] = field(default_factory=list)
    is_over: bool = False
    is_crowded: bool = False
    is_cut_off: bool = False

    @property
    def foreign(self) -> float:
        """Cores that other programs used in its turns, on average."""
        return math.fsum(turn.foreign for turn in self.turns) / max(1, len(self.turns))

    @property
    def seconds(self) -> float:
        """Seconds of its turns."""
        return math.fsum(turn.seconds for turn in self.turns)

    @property
    def step_seconds(self) -> float:
        """Seconds per step over its turns; 0 before the first."""
        steps = sum(turn.steps for turn in self.turns)
        return self.seconds / steps if steps else 0.0

    @property
    def speed(self) -> float:
        """Samples per second over its turns; there must be one."""
        return math.fsum(turn.samples for turn in self.turns) / self.seconds


@dataclass(slots=True)
class Round:
    """One process of each arm that take turns, or follow each other.

    Attributes:
        lives: The processes, by arm.
    """

    lives: dict[int, Life] = field(default_factory=dict)
    is_in_company: bool | None = None
    began_at: float = 0.0
    ended_at: float = 0.0

    def is_over(self, arms: Iterable[int]) -> bool:
        """Returns whether a process of each arm has run and ended."""
        return all(arm in self.lives and self.lives[arm].is_over for arm in arms)

    @property
    def speeds(self) -> dict[int, float]:
        """Samples per second of each arm that has taken a turn."""
        return {arm: life.speed for arm, life in self.lives.items() if life.turns}

    @property
    def seconds_of_turns(self) -> float:
        """Seconds of all turns."""
        return math.fsum(life.seconds for life in self.lives.values())


def rounds_of(log: Iterable[Event]) -> list[Round]:
    """Returns the rounds of a race, the unfinished one included."""
    rounds: list[Round] = []
    lives: dict[int, Life] = {}
    lap, in_lap = 0, set[int]()
    for event in log:
        if isinstance(event, Added | Verified):
            continue
        if isinstance(event, Started):
            if len(rounds) <= event.round:
                rounds.append(Round(began_at=event.at - event.seconds))
            life = lives[event.life] = Life(event.life, event.arm, event)
            rounds[-1].lives[event.arm] = life
            lap, in_lap = lap + 1, set()
        elif isinstance(event, Company):
            rounds[-1].is_in_company = event.is_possible
        elif isinstance(event, Turned):
            if event.life in in_lap:
                lap, in_lap = lap + 1, set()
            in_lap.add(event.life)
            lives[event.life].turns.append(event)
            lives[event.life].laps.append(lap)
        else:
            life = lives[event.life]
            life.is_over, life.is_crowded, life.is_cut_off = True, event.is_crowded, event.is_cut_off
            if event.is_failed:
                life.turns.clear()
                life.laps.clear()
        rounds[-1].ended_at = event.at
    return rounds


def rounds_of_speeds(speeds: Sequence[Mapping[int, float]]) -> list[Round]:
    """Returns rounds in which each process took a single turn, from its samples per second by arm."""
    rounds: list[Round] = []
    for number, together in enumerate(speeds):
        lives = {}
        for life, (arm, speed) in enumerate(together.items()):
            turn = Turned(life, 0.0, 1.0, 1, speed)
            lives[arm] = Life(life, arm, Started(life, arm, 0.0, 0.0, number), [turn], is_over=True)
        rounds.append(Round(lives))
    return rounds


def comparable_rounds(log: Iterable[Event]) -> list[Round]:
    """Returns the rounds in which all processes have ended, and the baseline is not alone in its turns."""
    rounds = [one for one in rounds_of(log) if one.is_over(one.lives)]
    return [one for one in rounds if BASELINE in one.speeds and len(one.speeds) > 1]


def drop_unfinished(log: Sequence[Event]) -> list[Event]:
    """Returns what counts of a race that was cut off: processes that have ended, in rounds that go on.

    A round whose processes were there at the same time is repeated, since their turns belong together.
    """
    rounds = rounds_of(log)
    ended = {life.number for one in rounds for life in one.lives.values() if life.is_over}
    if rounds and rounds[-1].is_in_company and not all(life.is_over for life in rounds[-1].lives.values()):
        # With what was said of others meanwhile.
        first = min(life.number for life in rounds[-1].lives.values())
        log = log[: next(n for n, e in enumerate(log) if isinstance(e, Started) and e.life == first)]
    kept: list[Event] = []
    is_known = False
    for event in log:
        if isinstance(event, Added):
            kept.append(event)
            continue
        if isinstance(event, Company):
            # It says what holds for the round of the process before it.
            if is_known:
                kept.append(event)
            continue
        is_known = event.life in ended
        if is_known:
            kept.append(event)
    return kept
