"""A minute of chaos with fixed seeds (and `test_chaos_faults`); `make soak` runs the long counts."""

from __future__ import annotations

import pytest
from chaos.chaos_harness import harness


def test_kills_and_signals():
    found = harness("chaos_minute.py")
    assert [each["violations"] for each in found.values()] == [[], [], []]
    supervisors, trials, signals = found.values()
    # A kill that meets nothing tells nothing.
    assert supervisors["inside"] >= 6
    assert len(supervisors["windows"]) >= 4
    assert trials["inside"] >= 6
    assert len(trials["windows"]) >= 2
    assert any(what.endswith((": 130", ": 143")) for what in signals["codes"])


@pytest.mark.soak
def test_the_real_trainer_killed():
    for kind, kills in (("supervisors", 1), ("trials", 2)):
        found = harness("chaos_real.py", kind, kills, 1)
        assert found["violations"] == []
        assert found["inside"] >= 1
