"""Runs a race: does what the policy says, and writes down what happens."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from sweeper.race.log import Added, Company, Ended, Event, Started, Turned, Verified, rounds_of
from sweeper.race.policy import Action, Done, End, Start, Turn

Taken = tuple[float, int, float, float]
"""A turn's seconds, steps and samples, and the cores that other programs used meanwhile."""


class Lives(Protocol):
    """Processes of a race's arms, by number."""

    def start(self, life: int, start: Start) -> Sequence[Verified]:
        """Starts a process; returns once it is warm and rests, or has ended by itself.

        Returns:
            What is now known about its training, and about that of others.
        """

    def has_company(self) -> bool:
        """Returns whether there is room for another process beside those that live."""

    def turn(self, life: int) -> Taken | None:
        """Lets a process take a turn; returns None if it has ended."""

    def end(self, life: int) -> list[Taken] | None:
        """Ends a process; returns those turns that `turn` has not returned, or None if it has failed."""

    def is_crowded_out(self, life: int) -> bool:
        """Returns whether a process that has failed did so because others were there."""

    def kill(self) -> None:
        """Kills all processes."""


class Rules(Protocol):
    """Decide what a race does next."""

    def next(self, log: Sequence[Event], at: float) -> Action:
        """Returns what to do next, `at` seconds after the race has begun."""

    def is_complete(self, log: Sequence[Event]) -> bool:
        """Returns whether no round is under way."""


def run(
    policy: Rules,
    lives: Lives,
    log: list[Event],
    seen: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
) -> Done:
    """Runs a race to its end, and returns why it ended.

    Args:
        log: Empty at first, or that of a race that goes on. What happens is appended to it, and is there
            after an interrupt, too.
        seen: Called after each complete round.

    Raises:
        TrialFailedError: A process cannot be measured, for a known reason.
        UserError: A process cannot be started.
    """
    race = _Race(policy, lives, log, seen, clock)
    try:
        while True:
            action = policy.next(log, race.now())
            if isinstance(action, Done):
                return action
            race.take(action)
    except BaseException:
        lives.kill()
        raise


class _Race:
    """Takes the actions of a race, and appends what happens to its log."""

    def __init__(
        self,
        policy: Rules,
        lives: Lives,
        log: list[Event],
        seen: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._policy, self._lives, self._log = policy, lives, log
        self._seen, self._clock = seen, clock
        self._began_s = clock() - (log[-1].at if log else 0.0)
        self._num_starts = sum(isinstance(event, Started) for event in log)

    def now(self) -> float:
        """Returns the seconds since the race has begun."""
        return self._clock() - self._began_s

    def take(self, action: Start | Turn | End) -> None:
        """Takes an action."""
        if isinstance(action, Start):
            self._start(action)
        elif isinstance(action, Turn):
            self._turn(action.life)
        else:
            self._end(action.life)

    def _start(self, action: Start) -> None:
        log, number, began = self._log, self._num_starts, self.now()
        arms = {event.arm for event in log if isinstance(event, Added)}
        if action.members and action.arm not in arms:
            log.append(Added(action.arm, began, action.members, action.reference))
        verified = self._lives.start(number, action)
        log.append(Started(number, action.arm, self.now(), self.now() - began, action.round))
        for event in verified:
            log.append(dataclasses.replace(event, at=self.now()))
        if rounds_of(log)[-1].is_in_company is None:
            log.append(Company(self._lives.has_company(), self.now()))
        self._num_starts += 1

    def _turn(self, life: int) -> None:
        turn = self._lives.turn(life)
        if turn is None:
            self._end(life)
        else:
            self._log.append(Turned(life, self.now(), *turn))

    def _end(self, life: int) -> None:
        rest = self._lives.end(life)
        for turn in rest or ():
            self._log.append(Turned(life, self.now(), *turn))
        is_failed = rest is None
        ended = Ended(life, self.now(), is_failed, is_crowded=is_failed and self._lives.is_crowded_out(life))
        self._log.append(ended)
        if self._policy.is_complete(self._log):
            self._seen()
