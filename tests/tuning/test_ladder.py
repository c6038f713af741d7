"""The ladder: each change alone and in the stack, and a winner without those that bring nothing."""

from __future__ import annotations

import math

import pytest

from sweeper.analysis.confirmation import choose_winner
from sweeper.core.config import TrialConfig
from sweeper.race.log import rounds_of_speeds
from sweeper.search.halves import Effect
from sweeper.tuning.steps import ONCE, ladder

CONFIGS = {
    0: TrialConfig(args={"loader": "original", "optimizer": "original"}),
    1: TrialConfig(args={"loader": "gathered", "optimizer": "fused"}),
    2: TrialConfig(args={"loader": "gathered", "optimizer": "original"}),
    3: TrialConfig(args={"loader": "original", "optimizer": "fused"}),
}
HELPS = rounds_of_speeds([{0: 10.0, 1: 40.0 + n, 2: 30.0 + n, 3: 13.0} for n in (0.0, 0.1, 0.2, 0.3)])
"""Rounds in which both changes bring something."""
NOISE = rounds_of_speeds(
    [{0: 10.0, 1: 33.0 + n, 2: 32.0 - n, 3: 10.0 + n / 10} for n in (-2.0, 2.0, -1.0, 1.0)]
)
"""Rounds in which the optimizer's gain is not shown, though its mean is above 1."""


def test_what_brings_something_is_kept():
    assert choose_winner(HELPS, CONFIGS, by_changes=True).winner == 1


def test_what_is_not_shown_to_bring_anything_is_not():
    found = choose_winner(NOISE, CONFIGS, by_changes=True)
    assert found.winner == 2
    assert found.ties == (1,)


def test_each_rung_has_its_gain_alone_and_in_the_stack():
    loader, optimizer = ladder(HELPS, CONFIGS, 1)
    assert (loader.name, loader.value, loader.is_kept) == ("loader", "gathered", True)
    assert loader.alone[0] == pytest.approx(3.0, rel=0.02)
    assert loader.stacked[0] == pytest.approx(40 / 13, rel=0.02)
    assert optimizer.alone[0] == pytest.approx(1.3)
    assert optimizer.stacked[1] > 1.25


def test_a_rung_that_is_not_kept_says_so():
    assert [each.is_kept for each in ladder(NOISE, CONFIGS, 2)] == [True, False]


def test_what_no_round_has_is_what_the_search_measured_once():
    rounds = rounds_of_speeds([{0: 10.0, 1: 40.0 + n} for n in (0.0, 0.1)])
    loader, optimizer = ladder(rounds, CONFIGS, 1, {0: 10.0, 1: 41.0, 2: 30.0})
    assert loader.alone == (3.0, *ONCE)
    assert loader.stacked is None
    assert optimizer.alone is None
    assert optimizer.stacked == (pytest.approx(41 / 30), *ONCE)


def test_what_the_search_knows_of_all_its_trials_is_better_than_once():
    rounds = rounds_of_speeds([{0: 10.0, 1: 40.0 + n} for n in (0.0, 0.1)])
    known = {"optimizer": Effect(0.2, 0.1, 0.3), "precision": Effect(-0.1, -0.2, 0.0)}
    configs = {**CONFIGS, 4: TrialConfig(args={**CONFIGS[1].args, "precision": "bf16"})}
    loader, optimizer, precision = ladder(rounds, configs, 1, {0: 10.0, 1: 41.0, 2: 30.0, 4: 35.0}, known)
    assert loader.stacked is None
    assert optimizer.stacked == pytest.approx((math.exp(0.2), math.exp(0.1), math.exp(0.3)))
    assert (precision.name, precision.value, precision.is_kept) == ("precision", "bf16", False)


def test_without_rounds_there_is_no_ladder():
    assert ladder([], CONFIGS, None) == []
