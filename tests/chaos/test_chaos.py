"""Chaos with fixed seeds (and `test_chaos_faults`): a minute; `make soak` has the long counts."""

from __future__ import annotations

import pytest
from chaos.chaos_harness import harness


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_supervisors", "num_trials", "num_signals", "words"),
    [
        pytest.param(4, 3, 2, (1, "cold"), id="minute"),
    ],
)
def test_kills_and_signals(
    num_supervisors: int, num_trials: int, num_signals: int, words: tuple[object, ...]
):
    found = harness("chaos_minute.py", num_supervisors, num_trials, num_signals, *words)
    assert [each["violations"] for each in found.values()] == [[], [], []]
    supervisors, trials, signals = found.values()
    # A kill that meets nothing tells nothing.
    assert supervisors["inside"] >= 0.75 * num_supervisors
    assert len(supervisors["windows"]) >= num_supervisors / 2
    assert trials["inside"] == num_trials
    assert len(trials["windows"]) >= 2
    assert any(what.endswith((": 130", ": 143")) for what in signals["codes"])


@pytest.mark.soak
def test_the_real_trainer_killed():
    for kind, kills in (("supervisors", 1), ("trials", 2)):
        found = harness("chaos_real.py", kind, kills, 1)
        assert found["violations"] == []
        assert found["inside"] >= 1
