"""What is confirmed after a search by halves: what pays, and nothing where nothing does."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest
from parts.noop import synthetic
from replays import Bench, spec_of

from sweeper.core.config import TrialConfig
from sweeper.core.measurement import Measurement
from sweeper.sweep.store.journal import Journal

pytestmark = pytest.mark.slow

OWN = {"precision.amp": "fp32", "optimizer.fused": False, "memory_format": "contiguous"}
SPEC = {
    "space": {
        "precision.amp": {"type": "categorical", "choices": ["fp32", "bf16"]},
        "optimizer.fused": {"type": "categorical", "choices": [False, True]},
        "memory_format": {"type": "categorical", "choices": ["contiguous", "channels_last"]},
    },
    "baseline": {**OWN, "loader.kind": "rows"},
    "also_try": [],
    "constraints": {},
    "workload": "changes",
    "confirm": {"top": 1, "rounds": 4},
    "search": {"trials": 24},
}
ALL = frozenset(OWN)


def speeds(gain: Callable[[frozenset[str]], float]) -> Callable[[TrialConfig], Measurement]:
    """Returns a surface on which the changes of a trial bring the log `gain`."""

    def answer(config: TrialConfig) -> Measurement:
        values = config.flatten()
        return synthetic(1000 * math.exp(gain(frozenset(name for name in OWN if values[name] != OWN[name]))))

    return answer


def confirmed(bench: Bench) -> set[frozenset[str]]:
    """Returns the changes of what took part in the rounds, but for the baseline."""
    rounds = Journal(bench.home / "sweeps" / "toy").race_jobs("final")
    configs = [entry.job.config.flatten() for entry in rounds]
    return {frozenset(name for name in OWN if each[name] != OWN[name]) for each in configs} - {frozenset()}


def together(gains: Mapping[str, float]) -> Callable[[frozenset[str]], float]:
    return lambda made: sum(gains.get(name, 0.0) for name in made)


def test_what_clearly_pays_is_confirmed_and_what_costs_takes_no_part(bench: Bench) -> None:
    gains = {"precision.amp": 0.5, "optimizer.fused": -0.3, "memory_format": 0.4}
    ran = bench.run(spec_of(**SPEC), speeds(together(gains)))
    pays = {"precision.amp", "memory_format"}
    assert confirmed(bench) == {frozenset(pays)}
    assert ran.sweep.confirmation.winner is not None


@pytest.mark.parametrize("lucky", [0.0, 0.03])
def test_where_nothing_pays_nothing_is_confirmed_however_fast_one_trial_was(
    bench: Bench, lucky: float
) -> None:
    ran = bench.run(spec_of(**SPEC), speeds(lambda made: lucky if made == ALL else -0.02 * len(made)))
    assert confirmed(bench) == set()
    assert ran.sweep.confirmation.winner is None


def test_what_may_pay_is_confirmed_beside_what_does(bench: Bench) -> None:
    gains = {"precision.amp": 0.5, "optimizer.fused": 0.03, "memory_format": -0.3}
    bench.run(spec_of(**SPEC), speeds(together(gains)))
    assert confirmed(bench) == {frozenset({"precision.amp"}), frozenset({"precision.amp", "optimizer.fused"})}
