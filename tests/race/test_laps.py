"""Arms that join a race while it runs are compared in the laps that they share."""

from __future__ import annotations

import math

import pytest

from sweeper.race.log import Added, Company, Started, Turned, rounds_of
from sweeper.race.tally import log_ratios

SLOW, FAST = 100.0, 200.0


def turn(life: int, speed: float) -> Turned:
    return Turned(life, 0.0, 1.0, 10, speed)


def test_who_joins_late_is_compared_with_the_turns_since_then():
    """The machine is twice as fast from the moment on at which the third process joins."""
    log = [
        Started(0, 0, 0.0, 1.0),
        Company(is_possible=True, at=0.0),
        Started(1, 1, 0.0, 1.0),
        *(turn(0, SLOW), turn(1, SLOW), turn(1, SLOW), turn(0, SLOW)),
        Added(2, 0.0, ("a=on",), 1),
        Started(2, 2, 0.0, 1.0),
        *(turn(0, FAST), turn(2, FAST), turn(1, FAST), turn(2, FAST), turn(1, FAST), turn(0, FAST)),
    ]
    (one,) = rounds_of(log)
    assert log_ratios(one, 1) == [0.0] * 4
    assert log_ratios(one, 2) == log_ratios(one, 2, 1) == [0.0] * 2


def test_who_joins_between_two_turns_of_a_lap_begins_another_one():
    log = [
        Started(0, 0, 0.0, 1.0),
        Company(is_possible=True, at=0.0),
        turn(0, SLOW),
        Started(1, 1, 0.0, 1.0),
        *(turn(1, FAST), turn(0, FAST)),
    ]
    (one,) = rounds_of(log)
    assert log_ratios(one, 1) == [0.0]


def test_processes_that_follow_each_other_are_compared_turn_by_turn():
    log = [
        Started(0, 0, 0.0, 1.0),
        Company(is_possible=False, at=0.0),
        *(turn(0, SLOW), turn(0, SLOW)),
        Started(1, 1, 0.0, 1.0),
        *(turn(1, FAST), turn(1, FAST)),
    ]
    (one,) = rounds_of(log)
    assert log_ratios(one, 1) == pytest.approx([math.log(2)] * 2)
