"""Intervals for a later measurement: they hold where the machine drifts, and learn how far it does."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator

import pytest

from sweeper.core.config import TrialConfig
from sweeper.race.drift import (
    LEAST,
    PRIOR_FREEDOM,
    PRIOR_RATIO,
    PRIOR_SPEED,
    Block,
    Drift,
    block_of,
    drift,
    share,
)
from sweeper.race.log import Round, rounds_of_speeds
from sweeper.race.tally import Variance
from sweeper.results.numbers.confirmation import choose_winner, ratios

NAMES = {0: "baseline", 1: "winner"}


def blocks(
    draw: random.Random, count: int, drifts: float, noise: float = 0.02, gain: float = 1.2, rounds: int = 6
) -> Iterator[tuple[list[Round], Block]]:
    """Yields confirmations on a machine on which each speed drifts in between."""
    for at in range(count):
        levels = {number: draw.gauss(gain * number, drifts) for number in NAMES}
        found = rounds_of_speeds(
            [
                {number: math.exp(draw.gauss(level, noise)) for number, level in levels.items()}
                for _ in range(rounds)
            ]
        )
        yield found, block_of(found, NAMES, float(at), str(at))


def test_without_a_record_the_drift_is_the_usual_one():
    found = drift([])
    assert found.ratio.value == pytest.approx(PRIOR_RATIO)
    assert found.speed.value == pytest.approx(PRIOR_SPEED)
    assert found.ratio.freedom == found.speed.freedom == PRIOR_FREEDOM


@pytest.mark.parametrize("sd", [0.02, 0.15])
def test_it_is_learned_from_what_was_measured_again(sd: float):
    found = drift([block for _, block in blocks(random.Random(0), 400, sd)])
    assert found.speed.value == pytest.approx(sd**2, rel=0.4, abs=LEAST * PRIOR_SPEED)
    # Both speeds of a ratio drift.
    assert found.ratio.value == pytest.approx(2 * sd**2, rel=0.4)
    assert found.speed.freedom > 200


def test_what_dropped_out_of_the_rounds_says_nothing():
    """It ran in the first ones only, and the machine may have changed since."""
    rounds = rounds_of_speeds([{0: 100.0, 1: 200.0, 2: 150.0}] * 3 + [{0: 150.0, 1: 300.0}] * 3)
    found = block_of(rounds, {**NAMES, 2: "other"}, 0.0, "0")
    assert set(found.speeds) == {"baseline", "winner"}
    assert found.speeds["winner"][0] - found.speeds["baseline"][0] == pytest.approx(math.log(2))


def test_a_steady_machine_is_not_thought_to_stand_still():
    found = drift([block for _, block in blocks(random.Random(0), 300, 0.0)])
    assert found.ratio.value == pytest.approx(LEAST * PRIOR_RATIO, rel=0.5)


def test_noisy_measurements_tell_little():
    noisy = drift([block for _, block in blocks(random.Random(0), 20, 0.0, noise=0.5, rounds=2)])
    quiet = drift([block for _, block in blocks(random.Random(0), 20, 0.0, noise=0.01)])
    assert noisy.ratio.freedom < PRIOR_FREEDOM + 2 < quiet.ratio.freedom


def test_equals_tell_nothing_of_the_drift_between_what_differs():
    found = drift([block for _, block in blocks(random.Random(0), 20, 0.1, gain=0.0)])
    assert found.ratio.freedom < PRIOR_FREEDOM + 10
    assert found.speed.freedom > PRIOR_FREEDOM + 15


def test_of_three_speeds_two_ratios_are_independent():
    draw = random.Random(0)

    def block(at: float) -> Block:
        return Block(
            at=at, of=str(at), speeds={name: (draw.gauss(3 * n, 0.1), 1e-6) for n, name in enumerate("abc")}
        )

    found = drift([block(0.0), block(1.0)])
    assert found.ratio.freedom == pytest.approx(PRIOR_FREEDOM + 2, abs=0.1)
    # All of them may have changed together.
    assert found.speed.freedom == pytest.approx(PRIOR_FREEDOM + 1, abs=0.1)


def test_equals_hardly_drift_apart():
    assert share(0.0) == 0
    assert share(math.log(1.1)) == pytest.approx(0.1375, rel=0.01)
    assert share(math.log(2)) == share(math.log(30)) == share(-math.log(30)) == 1


def test_the_interval_holds_the_later_ratio_where_that_of_now_does_not():
    draw = random.Random(1)
    known = [block for _, block in blocks(draw, 120, 0.06)]
    holds, held_now, speed_holds, count = 0, 0, 0, 400
    for _ in range(count):
        (first, _), (second, _) = blocks(draw, 2, 0.06)
        (before,) = ratios(first, drift(known))
        (after,) = ratios(second)
        holds += before.low <= after.ratio <= before.high
        held_now += before.sitting_low <= after.ratio <= before.sitting_high
        speed_holds += before.throughput_low <= after.throughput <= before.throughput_high
    assert 0.92 < holds / count < 0.99
    assert held_now / count < 0.6
    assert 0.92 < speed_holds / count < 0.99


def test_small_gains_keep_their_interval():
    rounds = rounds_of_speeds([{0: 1.0, 1: 1.05 * (1 + 0.0002 * n)} for n in 5 * (-1, 0, 1, 0)])
    (found,) = ratios(rounds, Drift(ratio=Variance(PRIOR_RATIO, 6), speed=Variance(PRIOR_SPEED, 6)))
    assert 1.03 < found.low < found.sitting_low


def test_without_a_drift_the_interval_is_that_of_now():
    (found,) = ratios(rounds_of_speeds([{0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.1}, {0: 1.0, 1: 1.9}]))
    assert (found.low, found.high) == (found.sitting_low, found.sitting_high)


def test_where_the_drift_is_larger_than_the_gain_nothing_wins():
    rounds = rounds_of_speeds([{0: 1.0, 1: 2.0 * (1 + 0.01 * n)} for n in (-1, 0, 1, 0)])
    configs = {0: TrialConfig(args={"loader": "original"}), 1: TrialConfig(args={"loader": "gathered"})}
    wild = Drift(ratio=Variance(0.4**2, 6), speed=Variance(0.4**2, 6))
    assert choose_winner(rounds, configs).winner == 1
    assert choose_winner(rounds, configs, drift=wild).winner is None
    (found,) = ratios(rounds, wild)
    assert found.is_faster_now


def test_rounds_apart_narrow_the_interval_and_it_holds_nonetheless() -> None:
    draw, usual = random.Random(3), Drift(ratio=Variance(PRIOR_RATIO, 100), speed=Variance(PRIOR_SPEED, 100))

    def block(count: int) -> list[Round]:
        drifted = math.log(3) + draw.gauss(0, math.sqrt(PRIOR_RATIO))
        speeds = [1000 * math.exp(drifted + draw.gauss(0, 0.03)) for _ in range(count)]
        return rounds_of_speeds([{0: 1000.0, 1: speed} for speed in speeds])

    runs, held, ratio_of_widths = 400, 0, []
    for _ in range(runs):
        early = [*block(1), *block(1)]
        rounds, then = block(5), block(5)
        (found,) = ratios(rounds, usual, early)
        (without,) = ratios(rounds, usual)
        (later,) = ratios(then)
        held += found.low <= later.ratio <= found.high
        ratio_of_widths.append(math.log(found.high / found.low) / math.log(without.high / without.low))
    assert held / runs >= 0.92
    assert statistics.fmean(ratio_of_widths) < 0.96


def test_rounds_apart_without_a_candidate_change_nothing_of_it() -> None:
    usual = Drift(ratio=Variance(PRIOR_RATIO, 6), speed=Variance(PRIOR_SPEED, 6))
    rounds = rounds_of_speeds([{0: 1000.0, 1: 2000.0 + number} for number in range(5)])
    assert ratios(rounds, usual, rounds_of_speeds([{0: 1.0, 2: 5.0}])) == ratios(rounds, usual)


def test_a_single_early_round_that_a_neighbour_disturbed_decides_little():
    rounds = rounds_of_speeds([{0: 1.0, 1: 3.0 + 0.01 * i} for i in range(6)])
    (alone,) = ratios(rounds, drift([]))
    (found,) = ratios(rounds, drift([]), rounds_of_speeds([{0: 1.0, 1: 2.0}]))
    assert 0.92 * alone.ratio < found.ratio < alone.ratio
    assert found.high > alone.ratio
