"""Tunes in virtual time: scripts whose changes have true effects, faults, deaths and noise."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sweeper.race import race
from sweeper.race.log import Event, Started, Verified
from sweeper.race.policy import Done, Start
from sweeper.race.race import Taken
from sweeper.script.changes.change import EXACT
from sweeper.tuning.contests import Candidate, RaceState
from sweeper.tuning.policy import TunePolicy


@dataclass
class Script:
    """What a script is like.

    Attributes:
        effects: Log of the gain of each change.
        faults: Why a change fails to verify.
        missing: Why a change is not in effect.
        failing: Number of processes that fail at their start, with a change.
        repeats: Whether two runs of the script are equal.
        records: Runs of the script after which it is known whether they are.
        start: Seconds until a process is warm.
        step: Seconds of a step of the script as it is.
        process: Standard deviation of a process's log speed; `turn` is that of a turn.
        death: Probability that a process ends before a turn.
        has_room: Whether several processes may live at the same time.
        listens: Whether it listens on a port, so that a process beside another one fails.
        epoch_ends: Probability that a turn holds the end of an epoch, which takes ten times as long.
        length: Turns that the training lasts, the last of which is cut off; 0 for a long one.
    """

    effects: Mapping[str, float] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    failing: Mapping[str, int] = field(default_factory=dict)
    repeats: bool = True
    records: int = 2
    start: float = 4.0
    step: float = 0.01
    process: float = 0.02
    turn: float = 0.02
    death: float = 0.0
    has_room: bool = True
    listens: bool = False
    epoch_ends: float = 0.0
    length: int = 0


class VirtualTune:
    """Processes that take no time but the clock's."""

    def __init__(self, script: Script, seed: int = 0) -> None:
        self.script, self._draw = script, random.Random(seed)
        self.now, self.alive, self.most_alive = 0.0, set[int](), 0
        self._speeds: dict[int, tuple[float, float]] = {}
        self._open: dict[int, tuple[str, ...]] = {}
        self._num_baseline = 0
        self._left = dict(script.failing)
        self._failed: set[int] = set()
        self._crowded: set[int] = set()
        self._num_turns = Counter[int]()
        self._members: dict[int, tuple[str, ...]] = {0: ()}

    def start(self, life: int, start: Start) -> list[Verified]:
        script = self.script
        self.now += script.start * self._draw.uniform(0.8, 1.2)
        self._members.setdefault(start.arm, start.members)
        members = [word for word in self._members[start.arm] if word not in script.missing]
        log = sum(script.effects.get(word, 0.0) for word in members)
        self._speeds[life] = log + self._draw.gauss(0, script.process), start.turn_seconds
        self.alive.add(life)
        self.most_alive = max(self.most_alive, len(self.alive))
        assert script.has_room or len(self.alive) == 1
        if start.arm == 0:
            self._num_baseline += 1
            is_known = self._num_baseline >= script.records
            open_lives, self._open = (self._open, {}) if is_known else ({}, self._open)
            return [Verified(number, 0.0, kind=EXACT, missing=gone) for number, gone in open_lives.items()]
        if script.listens and len(self.alive) > 1:
            self._failed.add(life)
            self._crowded.add(life)
            return [Verified(life, 0.0, "Address already in use", is_failure=True)]
        missing = tuple(
            f"{w.partition('=')[0]}: {script.missing[w]}" for w in start.members if w in script.missing
        )
        fault = next((script.faults[word] for word in members if word in script.faults), "")
        if any(self._left.get(word, 0) for word in members):
            self._left = {word: left - 1 for word, left in self._left.items()}
            self._failed.add(life)
            return [Verified(life, 0.0, "it crashes", is_failure=True)]
        if not script.repeats and not fault and self._num_baseline < script.records:
            self._open[life] = missing
            return [Verified(life, 0.0, "its losses differ", missing=missing, is_open=True)]
        return [Verified(life, 0.0, fault, "60 steps", EXACT, missing)]

    def is_crowded_out(self, life: int) -> bool:
        return life in self._crowded

    def has_company(self) -> bool:
        return self.script.has_room and not self._crowded

    def turn(self, life: int) -> Taken | None:
        assert life in self.alive
        self._num_turns[life] += 1
        if self._num_turns[life] == self.script.length:
            return None
        return None if life in self._failed or self._draw.random() < self.script.death else self._taken(life)

    def end(self, life: int) -> list[Taken] | None:
        self.alive.remove(life)
        if self.script.length and self._num_turns[life] == self.script.length:
            return [self._taken(life)]
        return None if life in self._failed else []

    def kill(self) -> None:
        self.alive.clear()

    def clock(self) -> float:
        return self.now

    def _taken(self, life: int) -> Taken:
        log, seconds = self._speeds[life]
        step = self.script.step / math.exp(log + self._draw.gauss(0, self.script.turn))
        step *= 10 if self._draw.random() < self.script.epoch_ends else 1
        steps = max(3, math.ceil(seconds / step))
        self.now += steps * step + 0.2
        return steps * step, steps, 64.0 * steps, 0.0


def exact(*words: str, **traits: Any) -> list[Candidate]:
    """Returns exact candidates, each of a parameter of its own."""
    return [_candidate(word, EXACT, traits) for word in words]


def close(*words: str, **traits: Any) -> list[Candidate]:
    """Returns close candidates."""
    return [_candidate(word, "close", traits) for word in words]


def _candidate(word: str, kind: str, traits: Mapping[str, Any]) -> Candidate:
    return Candidate(name=word.partition("=")[0], word=word, kind=kind, **traits)


@dataclass
class Raced:
    """A tune that has ended."""

    log: list[Event]
    lives: VirtualTune
    policy: TunePolicy
    done: Done

    @property
    def state(self) -> RaceState:
        return self.policy.state(self.log, is_final=True)

    @property
    def leading(self) -> set[str]:
        return set(self.state.members(self.state.leader))

    @property
    def arms(self) -> list[set[str]]:
        return [set(contest.requested) for contest in self.state.contests.values()]

    @property
    def starts(self) -> list[int]:
        return [event.arm for event in self.log if isinstance(event, Started)]


def tuned(
    script: Script, candidates: Sequence[Candidate], seconds: float = 300.0, seed: int = 0, **rules: Any
) -> Raced:
    """Returns a tune of a script in virtual time."""
    lives = VirtualTune(script, seed)
    policy = TunePolicy(candidates=tuple(candidates), seconds=seconds, seed=seed, **rules)
    log: list[Event] = []
    done = race.run(policy, lives, log, clock=lives.clock)
    return Raced(log, lives, policy, done)
