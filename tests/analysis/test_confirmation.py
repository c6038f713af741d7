"""Rounds of confirmation: interval, ties, and the winner."""

from __future__ import annotations

import math
import random
import statistics

import numpy as np
import pytest
from scipy import stats

from sweeper.analysis.confirmation import (
    Chosen,
    choose_winner,
    contenders,
    is_enough,
    ratios,
)
from sweeper.analysis.drift import Drift
from sweeper.analysis.intervals import Variance, interval
from sweeper.analysis.rounds import log_ratios, one_more, versus
from sweeper.core.config import TrialConfig

EAGER = TrialConfig(batch_size=512)
COMPILED = EAGER.replace({"compile.mode": "default"})
WORKERS = EAGER.replace({"loader.kind": "workers", "loader.num_workers": 4})


def winner(rounds: list[dict[int, float]], configs: dict[int, TrialConfig]) -> int | None:
    return choose_winner(rounds, 0, configs).winner


def rounds_of(*factors: float, noise: float = 0.01, count: int = 8) -> list[dict[int, float]]:
    """Trial n is `factors[n]` times the baseline, which is trial 0; each round has its own speed."""
    rng = random.Random(1)
    found = []
    for _ in range(count):
        speed = rng.uniform(50, 150)
        found.append({n: speed * f * math.exp(rng.gauss(0, noise)) for n, f in enumerate([1.0, *factors])})
    return found


@pytest.mark.parametrize("count", [2, 3, 7])
def test_the_interval_is_that_of_a_t_test(count):
    rng = random.Random(count)
    logs = [rng.gauss(0.3, 0.1) for _ in range(count)]
    mean, low, high = interval(logs)
    expected = stats.t.interval(0.95, count - 1, loc=mean, scale=stats.sem(logs))
    assert mean == pytest.approx(sum(logs) / count)
    assert (low, high) == pytest.approx(expected)


@pytest.mark.parametrize("count", [8, 15, 30])
def test_from_eight_rounds_on_it_is_that_of_the_trimmed_mean(count):
    rng = random.Random(count)
    logs = [rng.gauss(0.3, 0.1) for _ in range(count)]
    mean, low, high = interval(logs)
    assert mean == pytest.approx(stats.trim_mean(logs, 0.2))
    kept = count - 2 * int(0.2 * count)
    drawn_in = stats.mstats.winsorize(np.array(logs), limits=(0.2, 0.2))
    scale = math.sqrt(np.var(drawn_in, ddof=1) * (count - 1) / (kept * (kept - 1)))
    assert (low, high) == pytest.approx(stats.t.interval(0.95, kept - 1, loc=mean, scale=scale))


@pytest.mark.parametrize("disturbed", [0.0, 0.1])
def test_it_holds_where_a_neighbour_disturbs_some_rounds(disturbed):
    """A neighbour slows either process, by a third: plain intervals are a third wider then."""
    rng, runs, held, widths = random.Random(0), 2000, 0, []
    for _ in range(runs):
        logs = [rng.gauss(0, 0.05) for _ in range(12)]
        logs = [each + rng.choice([-0.4, 0.4]) * (rng.random() < disturbed) for each in logs]
        _, low, high = interval(logs)
        held += low <= 0 <= high
        plain = stats.t.interval(0.95, 11, loc=0, scale=stats.sem(logs))
        widths.append((high - low) / (plain[1] - plain[0]))
    assert 0.93 <= held / runs <= 0.985
    assert statistics.median(widths) < (0.85 if disturbed else 1.2)


def test_the_spread_of_the_other_pairs_counts_like_two_more_rounds():
    rounds = [{0: 100.0, 1: 200.0 * a, 2: 300.0 * b} for a, b in ((1.1, 1.0), (1.0, 1.05), (0.95, 0.9))]
    own, *rest = (log_ratios(rounds, *pair) for pair in ((1, 0), (2, 0), (2, 1)))
    usual = sum(statistics.variance(logs) for logs in rest) / 2
    spread = (2 * statistics.variance(own) + 2 * usual) / 4
    mean, low, high = versus(rounds, 1, 0)
    half = stats.t.ppf(0.975, 4) * math.sqrt(spread / 3)
    assert (low, high) == pytest.approx((mean - half, mean + half))
    assert high - low < interval(own)[2] - interval(own)[1]


def test_a_wild_one_says_nothing_about_the_others():
    rounds = [{0: 100.0, 1: 200.0 + index, 2: each} for index, each in enumerate((50.0, 300.0, 900.0))]
    assert versus(rounds, 1, 0) == pytest.approx(interval(log_ratios(rounds, 1, 0)))


@pytest.mark.parametrize("count", [3, 6])
def test_equals_are_seldom_told_apart(count: int):
    rng = random.Random(count)
    false = 0
    for _ in range(600):
        rounds = [{n: math.exp(rng.gauss(0, 0.1)) for n in range(4)} for _ in range(count)]
        _, low, high = versus(rounds, 1, 0)
        false += low > 0 or high < 0
    assert 0.02 <= false / 600 <= 0.085


def test_one_round_says_nothing():
    assert interval([0.7]) == (0.7, -math.inf, math.inf)
    (found,) = ratios([{0: 100.0, 1: 200.0}], 0)
    assert found.ratio == pytest.approx(2.0)
    assert (found.low, found.high) == (0.0, math.inf)
    assert winner([{0: 100.0, 1: 200.0}], {1: EAGER}) is None


def test_a_ratio_compares_within_a_round_and_only_there():
    rounds = [{0: 100.0, 1: 200.0}, {0: 10.0, 1: 20.0}, {1: 9000.0}, {0: 50.0}]
    (found,) = ratios(rounds, 0)
    assert found.ratio == pytest.approx(2.0)
    assert (found.low, found.high) == (pytest.approx(2.0), pytest.approx(2.0))
    assert found.rounds == (200.0, 20.0)
    assert found.throughput == pytest.approx(math.sqrt(200 * 20))


def test_the_mean_is_geometric():
    (found,) = ratios([{0: 1.0, 1: 1.0}, {0: 1.0, 1: 4.0}], 0)
    assert found.ratio == pytest.approx(2.0)


def test_best_first_and_without_the_baseline():
    assert [r.number for r in ratios(rounds_of(1.5, 3.0, 2.0), 0)] == [2, 3, 1]


def test_a_candidate_that_never_ran_beside_the_baseline_has_no_ratio():
    assert ratios([{1: 5.0}, {0: 1.0}], 0) == []


def test_the_fastest_wins_where_nothing_ties():
    configs = {1: EAGER, 2: COMPILED}
    assert winner(rounds_of(1.5, 3.0), configs) == 2


def test_of_those_that_tie_the_simpler_wins():
    rounds = rounds_of(2.0, 2.001, 2.002, noise=0.05)
    assert set(contenders(rounds, 0)) == {1, 2, 3}
    assert winner(rounds, {1: COMPILED, 2: WORKERS, 3: COMPILED}) == 2
    assert winner(rounds, {1: COMPILED, 2: WORKERS, 3: EAGER}) == 3


def test_the_simpler_of_two_that_do_not_tie_does_not_win():
    assert winner(rounds_of(1.9, 2.0, noise=0.001), {1: EAGER, 2: COMPILED}) == 2


def test_of_equally_simple_ones_the_smaller_batch_wins():
    rounds = rounds_of(2.0, 2.001, noise=0.05)
    assert winner(rounds, {1: EAGER.replace({"batch_size": 1024}), 2: EAGER}) == 2


def test_of_two_without_workers_the_one_with_resident_data_wins():
    rounds = rounds_of(2.0, 2.001, noise=0.05)
    in_process = EAGER.replace({"loader.kind": "workers", "batch_size": 32})
    assert winner(rounds, {1: in_process, 2: EAGER.replace({"loader.kind": "resident"})}) == 2


def test_nothing_better_than_the_baseline_is_a_result():
    assert winner(rounds_of(1.0, 0.9), {1: EAGER, 2: EAGER}) is None
    assert winner(rounds_of(1.02, noise=0.2), {1: EAGER}) is None
    assert winner([], {}) is None


def test_a_tie_with_one_that_is_not_faster_than_the_baseline_does_not_win():
    """Simplest of all, tied with the fastest for its own noise, and not shown to beat the baseline."""
    rounds = [{0: 100.0, 1: 150.0 + i, 2: (60.0, 400.0)[i % 2]} for i in range(6)]
    assert contenders(rounds, 0) == [2, 1]
    assert winner(rounds, {1: COMPILED, 2: EAGER}) == 1


def test_a_simpler_one_that_is_clearly_slower_wins_nothing_even_where_the_rounds_cannot_tell():
    rounds = [{0: 100.0, 1: 200.0, 2: 190.0 * (0.8, 1.2)[i % 2]} for i in range(8)]
    found = choose_winner(rounds, 0, {1: COMPILED, 2: EAGER})
    assert found == Chosen(winner=1, tied=(2,))


def test_what_is_unfit_does_not_win():
    rounds = rounds_of(2.0, 3.0)
    assert choose_winner(rounds, 0, {1: EAGER, 2: EAGER}, unfit={2}) == Chosen(winner=1)
    assert choose_winner(rounds, 0, {1: EAGER, 2: EAGER}, unfit={1, 2}) == Chosen(winner=None)


def test_a_candidate_that_is_clearly_slower_is_no_contender():
    assert contenders(rounds_of(1.9, 2.0, noise=0.001), 0) == [2]
    assert set(contenders(rounds_of(1.9, 2.0, noise=0.2), 0)) == {1, 2}


def test_rounds_are_enough_once_the_intervals_that_matter_are_narrow():
    assert not is_enough(rounds_of(2.0, noise=0.2), 0, 0.05)
    assert is_enough(rounds_of(2.0, noise=0.2), 0, 0.5)
    assert is_enough(rounds_of(2.0, 1.0, noise=0.01), 0, 0.05)
    # Narrow against the baseline, wide against a rival that may yet be faster.
    rounds = [{0: 100.0, 1: 200.0 + i % 2, 2: 199.0 * (0.7, 1.4)[i % 2]} for i in range(16)]
    assert not is_enough(rounds, 0, 0.05)
    # A rival whose interval is as wide, but who is hardly faster at best.
    assert is_enough([{**each, 2: 0.75 * each[2]} for each in rounds], 0, 0.05)
    assert not is_enough([{0: 1.0, 1: 2.0}], 0, 0.05)
    assert is_enough([], 0, 0.05)


@pytest.mark.parametrize(("factor", "enough"), [(2.0, True), (1.1, False)])
def test_rounds_are_enough_where_the_drift_decides(factor: float, enough: bool):
    """Two configurations that are nearly alike hardly drift apart."""
    rounds, much = rounds_of(factor, noise=0.05), Variance(0.08**2, 20)
    assert not is_enough(rounds, 0, 0.05)
    assert is_enough(rounds, 0, 0.05, Drift(ratio=much, speed=much)) is enough
    assert not is_enough(rounds_of(factor, noise=0.2), 0, 0.05, Drift(ratio=much, speed=much))


@pytest.mark.parametrize("num_rounds", [6, 12])
def test_a_later_process_is_within_what_one_more_adds(num_rounds):
    draw, holds, count = random.Random(0), 0, 500
    for _ in range(count):
        rounds = [{0: 1.0, 1: math.exp(draw.gauss(0, 0.1))} for _ in range(num_rounds)]
        mean, low, _ = versus(rounds, 1, 0)
        # The mean of as many rounds has the error of this one.
        half = math.hypot(math.sqrt(2) * (mean - low), one_more(rounds, 1, 0))
        holds += abs(draw.gauss(0, 0.1) - mean) <= half
    assert 0.93 < holds / count < 0.97
    assert one_more([{0: 1.0, 1: 2.0}], 1, 0) == math.inf


def test_means_over_other_rounds_do_not_bring_back_who_has_dropped_out():
    # Trial 1 is 2% slower than trial 2 in each round that both have; the first was one of a slow baseline.
    rounds = [{0: 90.0 if number == 0 else 100.0, 2: 200.0} for number in range(8)]
    for each in rounds[:3]:
        each[1] = 196.0 + 0.1 * rounds.index(each)
    assert ratios(rounds, 0)[0].number == 1
    assert contenders(rounds, 0) == [2]
