"""The log of a race: what happened, in order. Everything that is known of a race follows from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    """

    life: int
    arm: int
    at: float
    seconds: float


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
    samples: int
    foreign: float = 0.0


@dataclass(frozen=True, slots=True)
class Ended:
    """A process has ended, by itself or because it was told to."""

    life: int
    at: float


Event = Started | Company | Turned | Ended


@dataclass(slots=True)
class Life:
    """One process of an arm, as the log tells it."""

    number: int
    arm: int
    started: Started
    turns: list[Turned] = field(default_factory=list)
    is_over: bool = False

    @property
    def foreign(self) -> float:
        """Cores that other programs used in its turns, on average."""
        return math.fsum(each.foreign for each in self.turns) / max(1, len(self.turns))

    @property
    def step_seconds(self) -> float:
        """Seconds per step over its turns; 0 before the first."""
        steps = sum(each.steps for each in self.turns)
        return sum(each.seconds for each in self.turns) / steps if steps else 0.0


@dataclass(slots=True)
class Round:
    """One process of each arm that take turns, or follow each other."""

    lives: dict[int, Life] = field(default_factory=dict)
    is_in_company: bool | None = None
    began_at: float = 0.0
    ended_at: float = 0.0


def rounds_of(log: Sequence[Event]) -> list[Round]:
    """Returns the rounds of a race, the unfinished one included."""
    rounds: list[Round] = []
    lives: dict[int, Life] = {}
    for event in log:
        if isinstance(event, Started):
            if not rounds or event.arm in rounds[-1].lives:
                rounds.append(Round(began_at=event.at - event.seconds))
            life = lives[event.life] = Life(event.life, event.arm, event)
            rounds[-1].lives[event.arm] = life
        elif isinstance(event, Company):
            rounds[-1].is_in_company = event.is_possible
        elif isinstance(event, Turned):
            lives[event.life].turns.append(event)
        else:
            lives[event.life].is_over = True
        rounds[-1].ended_at = event.at
    return rounds


def is_over(found: Round, arms: int) -> bool:
    """Returns whether a process of each arm has run and ended."""
    return len(found.lives) == arms and all(each.is_over for each in found.lives.values())
