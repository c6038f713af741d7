"""What a search may still gain, by the neighbours of its best that were not tried."""

from __future__ import annotations

import itertools

import pytest
from replays import spec_of

from sweeper.core.record import SearchResult
from sweeper.results.numbers.effects import ActiveValues
from sweeper.search.climb import Climb
from sweeper.search.local_model import LocalModel

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


def told(known: list[dict]) -> tuple[Climb, set[str]]:
    climb, taken = Climb(SPEC), set()
    for number, params in enumerate(known):
        speed = params["batch_size"] ** 0.5 * (1.2 if params["precision.amp"] == "bf16" else 1.0)
        climb.tell(number, SearchResult(params=params, values=(speed,), constraints={}))
        taken.add(SPEC.config(params).key())
    return climb, taken


def gain(known: list[dict]) -> float | None:
    climb, taken = told(known)
    return climb.expected_gain(taken)


def test_too_few_trials_say_nothing():
    assert gain(GRID[:3]) is None


def test_where_every_neighbour_is_known_nothing_is_to_be_gained():
    assert gain(GRID) == 0.0


def test_a_direction_that_gains_is_expected_to_gain_and_tried():
    small = [params for params in GRID if params["batch_size"] <= 256]
    # The next batch size up is 1.41 times as fast.
    assert gain(small) == pytest.approx(0.35, abs=0.1)
    climb, taken = told(small)
    asked = climb.ask(taken, seed=0)
    assert asked is not None
    assert asked.params["batch_size"] == 512


def test_little_is_to_be_gained_where_only_what_does_not_matter_is_left():
    known = [p for p in GRID if (p["batch_size"], p["loader.prefetch_factor"]) != (512, 4)]
    assert gain(known) == pytest.approx(0.0, abs=0.03)


def test_a_batch_next_to_the_best_is_tried_before_a_search_ends():
    """Trials elsewhere say that a larger batch is slower; next to the best, nobody knows."""
    options = {"fix": {"loader.kind": "workers", "loader.num_workers": 2}, "also_try": []}
    spec = spec_of(space=SPACE, search={"regret": 0.1}, **options)
    climb, taken = Climb(spec), set()
    for number, params in enumerate(GRID):
        if params["precision.amp"] == "bf16" and params["batch_size"] != 128:
            continue
        speed = (
            300.0 if params["batch_size"] != 128 else 1000.0 if params["precision.amp"] == "bf16" else 900.0
        )
        climb.tell(number, SearchResult(params=params, values=(speed,), constraints={}))
        taken.add(spec.config(params).key())
    tried = []
    while (gain := climb.expected_gain(taken)) is None or gain > 0.1:
        asked = climb.ask(taken, seed=0)
        assert asked is not None
        tried.append(asked.params["batch_size"])
        climb.tell(100 + len(tried), SearchResult(params=asked.params, values=(300.0,), constraints={}))
        taken.add(spec.config(asked.params).key())
    assert {64, 256} <= set(tried)
    assert climb.expected_gain(taken) is not None


def test_the_best_of_several_unknown_changes_is_expected_to_gain_more_than_each():
    acting, small = ActiveValues(SPEC), GRID[:4]
    known = [(acting(SPEC.config(params)), -0.01 * number) for number, params in enumerate(small)]
    model = LocalModel(known, SPEC)
    left = [acting(SPEC.config(params)) for params in GRID[4:] if params["batch_size"] > 64]
    each = [model.improvement(flat) for flat in left]
    alone = model.improvement_of_any(left[:1])
    assert alone == pytest.approx(each[0], rel=0.2)
    assert max(each) * 1.1 < model.improvement_of_any(left) < sum(each)
    assert model.improvement_of_any([]) == 0.0
