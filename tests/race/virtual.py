"""Races in virtual time: processes whose speeds, starts, noise, deaths and stalls are drawn."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sweeper.race import race
from sweeper.race.log import Event, Verified
from sweeper.race.policy import Action, Policy, Start
from sweeper.race.race import Taken


@dataclass
class Clock:
    """A clock that stands still between events."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Nature:
    """What the processes of a race are like.

    Attributes:
        logs: Log speed of each arm.
        process: Standard deviation of the log speed of a process; `turn` is that of a turn.
        drift: Standard deviation of the machine's log speed per turn, as a random walk.
        death: Probability that a process ends by itself before a turn.
        stall: Probability that a turn takes a minute more.
        company: Probability that there is room for all arms.
    """

    logs: tuple[float, ...] = (0.0, 0.0)
    process: float = 0.02
    turn: float = 0.02
    start_seconds: float = 4.0
    step_seconds: float = 0.01
    drift: float = 0.0
    death: float = 0.0
    stall: float = 0.0
    company: float = 1.0


@dataclass
class VirtualLives:
    """Processes that take no time but the clock's."""

    nature: Nature
    draw: random.Random
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self._speeds: dict[int, float] = {}
        self._seconds: dict[int, float] = {}
        self._machine = 0.0
        self.alive, self.most_alive = set[int](), 0

    def start(self, life: int, start: Start) -> Sequence[Verified]:
        self.clock.now += self.nature.start_seconds * self.draw.uniform(0.5, 1.5)
        self._speeds[life] = self.nature.logs[start.arm] + self.draw.gauss(0, self.nature.process)
        self._seconds[life] = start.turn_seconds
        self.alive.add(life)
        self.most_alive = max(self.most_alive, len(self.alive))
        return ()

    def is_crowded_out(self, life: int) -> bool:
        return False

    def has_company(self) -> bool:
        return self.draw.random() < self.nature.company

    def turn(self, life: int) -> Taken | None:
        assert life in self.alive
        if self.draw.random() < self.nature.death:
            return None
        if self.draw.random() < self.nature.stall:
            self.clock.now += 60
        return self._taken(life)

    def end(self, life: int) -> list[Taken]:
        self.alive.remove(life)
        return [self._taken(life)] if self.draw.random() < self.nature.death else []

    def kill(self) -> None:
        self.alive.clear()

    def _taken(self, life: int) -> tuple[float, int, int]:
        self._machine += self.draw.gauss(0, self.nature.drift)
        log = self._speeds[life] + self._machine + self.draw.gauss(0, self.nature.turn)
        step = self.nature.step_seconds / math.exp(log)
        steps = max(1, math.ceil(self._seconds[life] / step))
        self.clock.now += steps * step + 0.3
        return steps * step, steps, 64 * steps, 0.0


@dataclass(frozen=True, kw_only=True)
class Watched(Policy):
    """A policy that keeps what it decided, after how many events and when."""

    decided: list[tuple[int, float, Action]] = field(default_factory=list)

    def next(self, log: list[Event], at: float) -> Action:  # type: ignore[override]
        action = Policy.next(self, log, at)
        self.decided.append((len(log), at, action))
        return action


def raced(
    nature: Nature, seed: int, seconds: float = 300.0, **rules: Any
) -> tuple[list[Event], Watched, VirtualLives]:
    """Returns the log of a race, its policy and its processes."""
    lives = VirtualLives(nature, random.Random(seed))
    policy = Watched(arms=tuple(range(len(nature.logs))), seconds=seconds, seed=seed, **rules)
    log: list[Event] = []
    race.run(policy, lives, log, clock=lives.clock)
    return log, policy, lives
