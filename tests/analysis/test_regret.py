"""What a search may still gain, by the neighbours of its best that were not tried."""

from __future__ import annotations

import itertools

import pytest
from replays import spec_of

from sweeper.analysis.regret import expected_regret
from sweeper.core.record import TrialRecord
from sweeper.testing.noop import made_up

SPACE = {
    "batch_size": {"type": "categorical", "choices": [64, 128, 256, 512]},
    "loader.prefetch_factor": {"type": "categorical", "choices": [2, 4, 8]},
    "precision.amp": {"type": "categorical", "choices": ["fp32", "bf16"]},
}
SPEC = spec_of(space=SPACE, fix={"loader.kind": "workers", "loader.num_workers": 2}, also_try=[])
GRID = [
    dict(zip(SPACE, combination, strict=True))
    for combination in itertools.product(*(each["choices"] for each in SPACE.values()))
]


def record(number: int, params: dict) -> TrialRecord:
    speed = params["batch_size"] ** 0.5 * (1.2 if params["precision.amp"] == "bf16" else 1.0)
    return TrialRecord(
        number=number, uid="", stage="search", config=SPEC.config(params), outcome=made_up(speed)
    )


def regret(records: list[TrialRecord]) -> float | None:
    best = max(records, key=lambda each: each.metric("throughput") or 0.0)
    return expected_regret(best, records, SPEC, {each.config.key() for each in records})


def test_too_few_trials_say_nothing():
    assert regret([record(n, params) for n, params in enumerate(GRID[:3])]) is None


def test_where_every_neighbour_is_known_nothing_is_to_be_gained():
    assert regret([record(n, params) for n, params in enumerate(GRID)]) == 0.0


def test_a_direction_that_gains_is_expected_to_gain():
    small = [params for params in GRID if params["batch_size"] <= 256]
    found = regret([record(n, params) for n, params in enumerate(small)])
    # The next batch size up is 1.41 times as fast.
    assert found == pytest.approx(0.35, abs=0.1)


def test_little_is_to_be_gained_where_only_what_does_not_matter_is_left():
    known = [p for p in GRID if (p["batch_size"], p["loader.prefetch_factor"]) != (512, 4)]
    assert regret([record(n, params) for n, params in enumerate(known)]) == pytest.approx(0.0, abs=0.01)
