"""How much sooner a winner reaches the baseline's loss."""

from __future__ import annotations

import math
import random

import pytest

from sweeper.results.numbers.confirmation import Ratio
from sweeper.results.numbers.time_to_loss import band, target, time_to_loss

SPEED = Ratio(trial=3, ratio=4.0, low=3.6, high=4.4, throughput=400.0, rounds=(400.0,) * 5)


def curve(scale: float, samples: int = 1000, parts: int = 20) -> list[tuple[int, float]]:
    """Returns a loss that falls with the square root of the samples, `scale` times as slowly."""
    points = [samples * part // parts for part in range(1, parts + 1)]
    return [(each, math.sqrt(scale * 100 / each)) for each in points]


def test_a_winner_that_needs_twice_the_samples_is_half_as_much_sooner():
    baseline = [curve(1.0)] * 3
    found = time_to_loss(target(baseline), baseline, [curve(2.0, 3000)] * 3, SPEED, 0.0)
    assert found is not None
    assert found.ratio == pytest.approx(2.0, rel=0.02)
    assert found.samples_ratio == pytest.approx(0.5, rel=0.02)
    assert (found.low, found.high) == (
        pytest.approx(2.0 * math.sqrt(3.6 / 4.4), rel=0.02),
        pytest.approx(2.0 * math.sqrt(4.4 / 3.6), rel=0.02),
    )


def test_one_process_of_each_may_differ_from_their_mean():
    baseline = [curve(1.0)] * 3
    found = time_to_loss(target(baseline), baseline, [curve(2.0, 3000)] * 3, SPEED, 0.5)
    assert found is not None
    assert math.log(found.high / found.ratio) == pytest.approx(
        math.hypot(0.5, math.log(4.4 / 3.6) / 2), rel=0.02
    )


def test_the_loss_is_one_that_every_seed_reaches():
    assert target([curve(1.0), curve(1.2)]) == curve(1.2)[-1][1]


def test_a_winner_that_does_not_get_there_has_no_time():
    baseline = [curve(1.0)] * 2
    assert time_to_loss(target(baseline), baseline, [curve(1.0), curve(4.0, 3000)], SPEED, 0.0) is None


def test_the_interval_holds_for_one_more_training_of_each():
    draw = random.Random(0)
    holds, count = 0, 400

    def noisy() -> float:
        return math.exp(draw.gauss(0, 0.08))

    for _ in range(count):
        curves = [curve(noisy(), 3000, 60) for _ in range(5)]
        winners = [curve(1.5 * noisy(), 6000, 120) for _ in range(5)]
        loss = target(curves)
        found = time_to_loss(loss, curves, winners, SPEED, 0.0)
        assert found is not None
        speed = 4.0 * math.exp(draw.gauss(0, math.log(4.4 / 3.6) / 4))
        later = speed * noisy() / (1.5 * noisy())
        holds += found.low <= later <= found.high
    assert 0.93 < holds / count < 0.995


def test_one_seed_has_no_interval():
    found = time_to_loss(curve(1.0)[-1][1], [curve(1.0)], [curve(1.0)], SPEED, 0.0)
    assert found is not None
    assert (found.low, found.high) == (0.0, math.inf)


def test_the_band_ends_where_the_first_curve_does():
    curves = [((10, 1.0), (20, 0.8), (30, 0.6)), ((10, 1.2), (20, 1.0))]
    found = band(curves)
    assert [samples for samples, *_ in found] == [10, 20]
    _, mean, low, high = found[0]
    assert mean == pytest.approx(1.1)
    assert low < 1.0 < 1.2 < high
    assert band(curves[:1]) == []
