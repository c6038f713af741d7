"""Several objectives: the front, and the one trial that is picked from it."""

from __future__ import annotations

import dataclasses
import random

import pytest
from measurements import measurement, record_of

from sweeper.core.measurement import Failure, FailureKind, Quality
from sweeper.core.record import TrialRecord
from sweeper.results.numbers.pareto import pareto, pick
from sweeper.schema.sections import Objective

SPEED_AND_LOSS = (Objective(maximize="throughput"), Objective(minimize="val_loss"))


def trial(number: int, speed: float, loss: float | None, **more) -> TrialRecord:
    quality = None if loss is None else Quality(key="", samples=1, seconds=0, train_loss=loss, val_loss=loss)
    found = dataclasses.replace(measurement(), throughput=speed)
    return dataclasses.replace(record_of(found, number), quality=quality, **more)


def numbers(records: list[TrialRecord]) -> list[int]:
    return [record.number for record in records]


@pytest.mark.parametrize("seed", range(20))
def test_nothing_in_the_front_is_beaten_and_everything_else_is(seed: int):
    rng = random.Random(seed)
    # Few values, so that many are equal in one objective or in both.
    records = [trial(i, rng.randint(1, 5), rng.randint(1, 5)) for i in range(15)]

    def beaten(record: TrialRecord) -> bool:
        mine = (record.metric("throughput"), -record.metric("val_loss"))
        others = [(other.metric("throughput"), -other.metric("val_loss")) for other in records]
        return any(o != mine and o[0] >= mine[0] and o[1] >= mine[1] for o in others)

    assert numbers(pareto(records, SPEED_AND_LOSS)) == [r.number for r in records if not beaten(r)]


def test_what_is_infeasible_failed_or_without_a_metric_beats_nothing():
    records = [
        trial(4, 10.0, 1.0),
        trial(1, 99.0, 0.1, violations={"val_loss": 0.5}),
        trial(2, 99.0, None),
        trial(3, 99.0, 0.1, outcome=Failure(kind=FailureKind.OOM, message="")),
    ]
    assert numbers(pareto(records, SPEED_AND_LOSS)) == [4]
    assert pareto([], SPEED_AND_LOSS) == []


def test_each_objective_has_its_own_direction():
    records = [trial(1, 10.0, 1.0), trial(2, 20.0, 2.0), trial(3, 5.0, 3.0)]
    opposite = (Objective(minimize="throughput"), Objective(maximize="val_loss"))
    assert numbers(pareto(records, opposite)) == [3]


# Speeds 0 to 100, losses 1.0 to 2.0: number 2 is far from the straight line between the extremes.
BENT = [trial(0, 0.0, 1.0), trial(1, 20.0, 1.15), trial(2, 70.0, 1.2), trial(3, 100.0, 2.0)]


def test_the_knee_is_the_farthest_from_the_line_through_the_extremes():
    picked = pick(BENT, SPEED_AND_LOSS, "knee")
    assert picked is BENT[2]
    # Whatever the units.
    scaled = [
        trial(r.number, 1e6 * r.metric("throughput"), 5 + r.metric("val_loss") / 1e3) for r in BENT[::-1]
    ]
    assert pick(scaled, SPEED_AND_LOSS, "knee").number == 2


def test_of_equal_ones_the_lower_number_is_picked():
    """On a straight front all sums are equal, but for the last digits of floats."""
    line = [trial(i, 0.1 * i, 1 + 0.1 * i) for i in (7, 3, 5, 4)]
    assert pick(line, SPEED_AND_LOSS, "knee").number == 3
    same = [trial(9, 1.0, 1.0), trial(8, 1.0, 1.0)]
    assert pick(same, SPEED_AND_LOSS, "knee").number == 8
    assert pick(same, SPEED_AND_LOSS, "lowest_loss").number == 8


@pytest.mark.parametrize(("third", "picked"), [(1.02, 2), (1.021, 1)])
def test_the_fastest_within_two_percent_of_the_lowest_loss(third: float, picked: int):
    front = [trial(0, 1.0, 1.0), trial(1, 2.0, 1.01), trial(2, 3.0, third), trial(3, 9.0, 1.5)]
    assert pick(front, SPEED_AND_LOSS, "lowest_loss").number == picked


def test_two_percent_of_a_loss_below_zero_are_above_it():
    front = [trial(0, 1.0, -1.0), trial(1, 2.0, -0.985), trial(2, 3.0, -0.9)]
    assert pick(front, SPEED_AND_LOSS, "lowest_loss").number == 1


def test_nothing_to_pick_from():
    assert pick([], SPEED_AND_LOSS, "knee") is None
    assert pick([trial(1, 1.0, None)], SPEED_AND_LOSS[:1], "lowest_loss") is None
    assert pick([trial(1, 1.0, None)], SPEED_AND_LOSS[:1], "knee").number == 1
