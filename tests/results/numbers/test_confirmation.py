"""Rounds of confirmation: interval, ties, and the winner."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from scipy import stats

from sweeper.core.config import TrialConfig
from sweeper.race.drift import Drift
from sweeper.race.log import Round, rounds_of_speeds
from sweeper.race.tally import TRIM, Variance, contenders, interval_of
from sweeper.results.numbers.confirmation import WinnerChoice, choose_winner, ratios

EAGER = TrialConfig(batch_size=512)
COMPILED = EAGER.replace({"compile.mode": "default"})
WORKERS = EAGER.replace({"loader.kind": "workers", "loader.num_workers": 4})


def winner(rounds: list[Round], configs: dict[int, TrialConfig]) -> int | None:
    return choose_winner(rounds, configs).winner


def rounds_of(*factors: float, noise: float = 0.01, count: int = 8) -> list[Round]:
    """Trial n is `factors[n]` times the baseline, which is trial 0; each round has its own speed."""
    rng = random.Random(1)
    found = []
    for _ in range(count):
        speed = rng.uniform(50, 150)
        found.append({n: speed * f * math.exp(rng.gauss(0, noise)) for n, f in enumerate([1.0, *factors])})
    return rounds_of_speeds(found)


@pytest.mark.parametrize("count", [2, 3, 7])
def test_the_interval_is_that_of_a_t_test(count):
    rng = random.Random(count)
    logs = [rng.gauss(0.3, 0.1) for _ in range(count)]
    mean, low, high = interval_of(logs)
    expected = stats.t.interval(0.95, count - 1, loc=mean, scale=stats.sem(logs))
    assert mean == pytest.approx(sum(logs) / count)
    assert (low, high) == pytest.approx(expected)


def logs_with_outliers(count: int) -> list[float]:
    rng = random.Random(count)
    return [rng.gauss(0.3, 0.1) * (5 if rng.random() < 0.1 else 1) for _ in range(count)]


@pytest.mark.parametrize("count", [*range(8, 41), 100])
def test_from_eight_rounds_on_it_is_that_of_yuens_test(count):
    """Against zeros, which do not vary, scipy's test of two trimmed samples has the error of ours alone."""
    logs = logs_with_outliers(count)
    mean, low, high = interval_of(logs)
    test = stats.ttest_ind(logs, [0.0] * count, trim=TRIM, equal_var=False)
    assert mean == pytest.approx(stats.trim_mean(logs, TRIM))
    assert (low, high) == pytest.approx(
        stats.t.interval(0.95, test.df, loc=mean, scale=mean / test.statistic)
    )


@pytest.mark.parametrize("count", [*range(8, 41), 100])
def test_it_is_scipys_interval_of_a_trimmed_mean_but_for_the_number_of_values(count):
    """Yuen divides by h (h - 1) for the h of n values that are kept, scipy by 0.6 n * 0.6 (n - 1)."""
    logs = logs_with_outliers(count)
    mean, low, high = interval_of(logs)
    scipys_low, scipys_high = stats.mstats.trimmed_mean_ci(logs, limits=(TRIM, TRIM))
    kept = count - 2 * int(TRIM * count)
    wider = (1 - 2 * TRIM) * math.sqrt(count * (count - 1) / (kept * (kept - 1)))
    assert mean == pytest.approx((scipys_low + scipys_high) / 2)
    assert high - low == pytest.approx(wider * (scipys_high - scipys_low))


@pytest.mark.parametrize("disturbed", [0.0, 0.1])
def test_it_holds_where_a_neighbour_disturbs_some_rounds(disturbed):
    """A neighbour slows either process, by a third: plain intervals are a third wider then."""
    rng, runs, held, widths = random.Random(0), 2000, 0, []
    for _ in range(runs):
        logs = [rng.gauss(0, 0.05) for _ in range(12)]
        logs = [each + rng.choice([-0.4, 0.4]) * (rng.random() < disturbed) for each in logs]
        _, low, high = interval_of(logs)
        held += low <= 0 <= high
        plain = stats.t.interval(0.95, 11, loc=0, scale=stats.sem(logs))
        widths.append((high - low) / (plain[1] - plain[0]))
    assert 0.93 <= held / runs <= 0.985
    assert statistics.median(widths) < (0.85 if disturbed else 1.2)


def test_a_ratio_compares_within_a_round_and_only_there():
    rounds = rounds_of_speeds([{0: 100.0, 1: 200.0}, {0: 10.0, 1: 20.0}, {1: 9000.0}, {0: 50.0}])
    (found,) = ratios(rounds)
    assert found.ratio == pytest.approx(2.0)
    assert found.low == pytest.approx(2.0 / math.exp(0.164), rel=0.01)
    assert found.rounds == (200.0, 20.0)
    assert found.throughput == pytest.approx(math.sqrt(200 * 20))


def test_the_mean_is_geometric():
    (found,) = ratios(rounds_of_speeds([{0: 1.0, 1: 1.0}, {0: 1.0, 1: 4.0}]))
    assert found.ratio == pytest.approx(2.0)


def test_best_first_and_without_the_baseline():
    assert [r.trial for r in ratios(rounds_of(1.5, 3.0, 2.0))] == [2, 3, 1]


def test_a_candidate_that_never_ran_beside_the_baseline_has_no_ratio():
    assert ratios(rounds_of_speeds([{1: 5.0}, {0: 1.0}])) == []


def test_the_fastest_wins_where_nothing_ties():
    configs = {1: EAGER, 2: COMPILED}
    assert winner(rounds_of(1.5, 3.0), configs) == 2


def test_of_those_that_tie_the_simpler_wins():
    rounds = rounds_of(2.0, 2.001, 2.002, noise=0.05)
    assert set(contenders(rounds, [1, 2, 3])) == {1, 2, 3}
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


def test_a_simpler_one_that_is_clearly_slower_wins_nothing_even_where_the_rounds_cannot_tell():
    speeds = [{0: 100.0, 1: 200.0, 2: 190.0 * (0.8, 1.2)[i % 2]} for i in range(8)]
    found = choose_winner(rounds_of_speeds(speeds), {1: COMPILED, 2: EAGER})
    assert found == WinnerChoice(winner=1, ties=(2,))


def test_a_change_that_the_race_before_has_shown_to_pay_is_kept():
    configs = {0: EAGER, 1: EAGER.replace({"batch_size": 64})}
    configs[2] = configs[1].replace({"loader.pin_memory": True})
    wide = rounds_of_speeds([{0: 100.0, 1: 190.0 * (0.9, 1.1)[i % 2], 2: 200.0} for i in range(4)])
    assert choose_winner(wide, configs, by_changes=True) == WinnerChoice(winner=1, ties=(2,))
    # In the race before, the baseline was not always there.
    before = rounds_of_speeds([{1: 190.0 * (0.999, 1.001)[i % 2], 2: 210.0} for i in range(20)])
    assert choose_winner(wide, configs, by_changes=True, before=before) == WinnerChoice(winner=2)
    slower = rounds_of_speeds([{1: 190.0 * (0.999, 1.001)[i % 2], 2: 180.0} for i in range(20)])
    assert choose_winner(wide, configs, by_changes=True, before=slower).winner == 1


def test_what_is_unfit_does_not_win():
    rounds = rounds_of(2.0, 3.0)
    assert choose_winner(rounds, {1: EAGER, 2: EAGER}, unfit={2}) == WinnerChoice(winner=1)
    assert choose_winner(rounds, {1: EAGER, 2: EAGER}, unfit={1, 2}) == WinnerChoice(winner=None)


def test_what_kept_failing_does_not_win():
    """It was the fastest once, and its later processes failed."""
    rounds = [*rounds_of_speeds([{0: 1.0, 1: 3.0, 2: 2.0}]), *rounds_of(1.0, 2.0, noise=0.001, count=5)]
    assert winner(rounds, {1: EAGER, 2: EAGER}) == 2
    for one in rounds[1:]:
        one.lives[1].turns.clear()
    assert ratios(rounds)[0].trial == 1
    assert winner(rounds, {1: EAGER, 2: EAGER}) == 2


@pytest.mark.parametrize("takes_turns", [True, False])
def test_a_single_turn_of_each_carries_no_interval_where_they_take_turns(takes_turns: bool) -> None:
    (single,) = rounds_of(1.2, count=1)
    single.is_in_company = takes_turns
    for life in single.lives.values():
        life.laps = [0]
    for drift in (None, Drift(ratio=Variance(0.001, 6), speed=Variance(0.001, 6))):
        (found,) = ratios([single], drift)
        assert found.ratio == pytest.approx(1.2, rel=0.05)
        assert found.has_interval is not takes_turns
