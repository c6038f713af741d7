"""Starts and hill-climbing: what is tried first, and which neighbour is next."""

from __future__ import annotations

import pytest
from replays import spec_of

from sweeper.core.record import SearchResult
from sweeper.search.climb import Climb, changes
from sweeper.search.presets import presets

NUMBERS = {
    "batch_size": {"type": "categorical", "choices": [64, 128, 256, 512]},
    "loader.prefetch_factor": {"type": "categorical", "choices": [2, 4, 8]},
    "precision.amp": {"type": "categorical", "choices": ["fp32", "bf16"]},
}


def told(spec, *trials: tuple[int, int, str, float]) -> dict[int, SearchResult]:
    return {
        number: SearchResult(
            params={"batch_size": batch, "loader.prefetch_factor": prefetch, "precision.amp": amp},
            values=(abs(value),),
            constraints={"ran": 1.0 if value < 0 else 0.0},
        )
        for number, (batch, prefetch, amp, value) in enumerate(trials)
    }


def climb(spec, known, taken, seed) -> dict | None:
    found = asked(spec, known, taken, seed)
    return found.params if found is not None else None


def asked(spec, known, taken, seed):
    climber = Climb(spec)
    for number, each in known.items():
        climber.tell(number, each)
    return climber.ask(taken, seed)


def keys(spec, known) -> set[str]:
    return {spec.config(each.params).key() for each in known.values()}


def test_losses_below_0_have_effects_too():
    spec = spec_of(space=NUMBERS, also_try=[], objectives=[{"minimize": "val_loss"}])
    losses = {(64, "fp32"): -1.0, (128, "fp32"): -1.4, (64, "bf16"): -0.5}
    known = {
        number: SearchResult(
            params={"batch_size": batch, "loader.prefetch_factor": 2, "precision.amp": amp},
            values=(loss,),
            constraints={},
        )
        for number, ((batch, amp), loss) in enumerate(losses.items())
    }
    for seed in range(5):
        params = climb(spec, known, keys(spec, known), seed)
        assert params is not None
        # Larger batches lower the loss, and bf16 raises it.
        assert (params["batch_size"], params["precision.amp"]) == (256, "fp32")


@pytest.fixture
def spec():
    return spec_of(space=NUMBERS, fix={"loader.kind": "workers", "loader.num_workers": 2}, also_try=[])


def test_a_neighbour_of_the_best_differs_in_one_parameter(spec):
    known = told(spec, (128, 4, "fp32", 10.0), (512, 8, "bf16", 5.0))
    best = known[0].params
    for seed in range(20):
        params = climb(spec, known, keys(spec, known), seed)
        assert params is not None
        (name,) = [name for name in params if params[name] != best[name]]
        # Numbers move by one choice.
        assert params[name] in {"batch_size": (64, 256), "loader.prefetch_factor": (2, 8)}.get(
            name, ("bf16",)
        )


def test_what_gained_is_followed_in_its_direction(spec):
    known = told(spec, (64, 4, "fp32", 10.0), (128, 4, "fp32", 20.0), (128, 2, "fp32", 19.0))
    for seed in range(10):
        params = climb(spec, known, keys(spec, known), seed)
        assert params == {**known[1].params, "batch_size": 256}


def test_what_did_not_fit_is_not_climbed_from(spec):
    known = told(spec, (64, 4, "fp32", 10.0), (512, 4, "fp32", -99.0))
    params = climb(spec, known, keys(spec, known), 0)
    assert params is not None
    assert params["batch_size"] in (64, 128)


def test_the_second_best_has_neighbours_too_and_then_there_is_nothing(spec):
    known = told(spec, (64, 2, "fp32", 10.0), (512, 8, "bf16", 5.0))
    taken = keys(spec, known)
    found = []
    while (params := climb(spec, known, taken, 0)) is not None:
        found.append(params)
        taken.add(spec.config(params).key())
    near = [p for p in found if p["batch_size"] in (64, 128) and p["loader.prefetch_factor"] in (2, 4)]
    assert len(near) == 3
    assert found[:3] == near
    assert len(found) == 6
    assert climb(spec, {}, set(), 0) is None


def test_smaller_is_better_where_the_objective_says_so():
    spec = spec_of(space=NUMBERS, objectives=[{"minimize": "epoch_seconds"}], also_try=[])
    known = told(spec, (64, 2, "fp32", 10.0), (512, 8, "bf16", 5.0))
    params = climb(spec, known, keys(spec, known), 0)
    assert params is not None
    assert params["batch_size"] in (256, 512)


def test_changes_without_an_effect_are_none():
    space = {
        "loader.kind": {"type": "categorical", "choices": ["workers", "resident"]},
        "loader.num_workers": {"type": "int", "low": 0, "high": 4, "when": {"loader.kind": "workers"}},
    }
    spec = spec_of(space=space, also_try=[])
    found = changes(spec, {"loader.kind": "resident", "loader.num_workers": 2})
    assert [each[:2] for each in found] == [("loader.kind", "workers")]


def test_starts_lie_in_the_space_and_differ():
    spec = spec_of()
    starts = [start.params for start in presets(spec)]
    assert len({spec.config(params).key() for params in starts}) == len(starts) >= 4
    for params in starts:
        assert params.keys() == spec.space.keys()
        assert all(spec.space[name].contains(value) for name, value in params.items())
    assert starts[0]["loader.kind"] == "resident"
    assert {params["batch_size"] for params in starts[:2]} == {256, 1024}
    assert any(params["loader.kind"] == "workers" for params in starts)
    assert any(params["precision.amp"] == "fp32" for params in starts)


def test_every_model_size_gets_a_start_after_the_baselines_own():
    space = {"model.width": {"type": "categorical", "choices": [1, 2, 3]}}
    spec = spec_of(space=space, baseline={"model.width": 2}, also_try=[])
    assert [start.params for start in presets(spec)] == [
        {"model.width": 2},
        {"model.width": 1},
        {"model.width": 3},
    ]


def test_one_climbs_from_the_best_of_the_baselines_own_size_and_stays_there():
    space = {
        "batch_size": {"type": "categorical", "choices": [64, 128, 256, 512]},
        "model.width": {"type": "categorical", "choices": [1, 2]},
    }
    spec = spec_of(space=space, baseline={"model.width": 2, "batch_size": 64}, also_try=[])
    known = {
        1: SearchResult(params={"batch_size": 256, "model.width": 1}, values=(99.0,), constraints={}),
        2: SearchResult(params={"batch_size": 64, "model.width": 2}, values=(10.0,), constraints={}),
    }
    params = climb(spec, known, keys(spec, known), 0)
    assert params == {"batch_size": 128, "model.width": 2}
    assert asked(spec, known, keys(spec, known), 0).why == "one step from trial 2: batch_size 64 -> 128"
