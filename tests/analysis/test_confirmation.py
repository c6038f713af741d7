"""Rounds of confirmation: interval, ties, and the winner."""

from __future__ import annotations

import math
import random

import pytest
from scipy import stats

from sweeper.analysis.confirmation import decide, interval, ratios, tied_with
from sweeper.core.config import TrialConfig

EAGER = TrialConfig(batch_size=512)
COMPILED = EAGER.replace({"compile.mode": "default"})
WORKERS = EAGER.replace({"loader.kind": "workers", "loader.num_workers": 4})


def rounds_of(*factors: float, noise: float = 0.01, count: int = 8) -> list[dict[int, float]]:
    """Trial n is `factors[n]` times the baseline, which is trial 0; each round has its own speed."""
    rng = random.Random(1)
    found = []
    for _ in range(count):
        speed = rng.uniform(50, 150)
        found.append({n: speed * f * math.exp(rng.gauss(0, noise)) for n, f in enumerate([1.0, *factors])})
    return found


@pytest.mark.parametrize("count", [2, 3, 8, 30])
def test_the_interval_is_that_of_a_t_test(count):
    rng = random.Random(count)
    logs = [rng.gauss(0.3, 0.1) for _ in range(count)]
    mean, low, high = interval(logs)
    expected = stats.t.interval(0.95, count - 1, loc=mean, scale=stats.sem(logs))
    assert mean == pytest.approx(sum(logs) / count)
    assert (low, high) == pytest.approx(expected)


def test_one_round_says_nothing():
    assert interval([0.7]) == (0.7, -math.inf, math.inf)
    (found,) = ratios([{0: 100.0, 1: 200.0}], 0)
    assert found.ratio == pytest.approx(2.0)
    assert (found.low, found.high) == (0.0, math.inf)
    assert decide([{0: 100.0, 1: 200.0}], 0, {1: EAGER}) is None


def test_a_ratio_compares_within_a_round_and_only_there():
    rounds = [{0: 100.0, 1: 200.0}, {0: 10.0, 1: 20.0}, {1: 9000.0}, {0: 50.0}]
    (found,) = ratios(rounds, 0)
    assert found.ratio == pytest.approx(2.0)
    assert (found.low, found.high) == (pytest.approx(2.0), pytest.approx(2.0))
    assert found.rounds == (200.0, 20.0)
    assert found.throughput == pytest.approx(110.0)


def test_the_mean_is_geometric():
    (found,) = ratios([{0: 1.0, 1: 1.0}, {0: 1.0, 1: 4.0}], 0)
    assert found.ratio == pytest.approx(2.0)


def test_best_first_and_without_the_baseline():
    assert [r.number for r in ratios(rounds_of(1.5, 3.0, 2.0), 0)] == [2, 3, 1]


def test_a_candidate_that_never_ran_beside_the_baseline_has_no_ratio():
    assert ratios([{1: 5.0}, {0: 1.0}], 0) == []


def test_the_fastest_wins_where_nothing_ties():
    configs = {1: EAGER, 2: COMPILED}
    assert decide(rounds_of(1.5, 3.0), 0, configs) == 2


def test_of_those_that_tie_the_simpler_wins():
    rounds = rounds_of(2.0, 2.001, 2.002, noise=0.05)
    assert set(tied_with(3, rounds)) == {1, 2, 3}
    assert decide(rounds, 0, {1: COMPILED, 2: WORKERS, 3: COMPILED}) == 2
    assert decide(rounds, 0, {1: COMPILED, 2: WORKERS, 3: EAGER}) == 3


def test_the_simpler_of_two_that_do_not_tie_does_not_win():
    assert decide(rounds_of(1.9, 2.0, noise=0.001), 0, {1: EAGER, 2: COMPILED}) == 2


def test_of_equally_simple_ones_the_smaller_batch_wins():
    rounds = rounds_of(2.0, 2.001, noise=0.05)
    assert decide(rounds, 0, {1: EAGER.replace({"batch_size": 1024}), 2: EAGER}) == 2


def test_of_two_without_workers_the_one_with_resident_data_wins():
    rounds = rounds_of(2.0, 2.001, noise=0.05)
    in_process = EAGER.replace({"loader.kind": "workers", "batch_size": 32})
    assert decide(rounds, 0, {1: in_process, 2: EAGER.replace({"loader.kind": "resident"})}) == 2


def test_nothing_better_than_the_baseline_is_a_result():
    assert decide(rounds_of(1.0, 0.9), 0, {1: EAGER, 2: EAGER}) is None
    assert decide(rounds_of(1.02, noise=0.2), 0, {1: EAGER}) is None
    assert decide([], 0, {}) is None


def test_a_tie_with_one_that_is_not_faster_than_the_baseline_does_not_win():
    """Simplest of all, tied with the fastest for its own noise, and not shown to beat the baseline."""
    rounds = [{0: 100.0, 1: 150.0 + i, 2: (60.0, 400.0)[i % 2]} for i in range(6)]
    assert 2 in tied_with(1, rounds)
    assert decide(rounds, 0, {1: COMPILED, 2: EAGER}) == 1
