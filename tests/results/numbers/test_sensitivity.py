"""What the winner costs when it is moved: neighbours, trials that stand for them, and the prediction."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest
from parts.noop import synthetic

from sweeper.core.measurement import Failure, FailureKind
from sweeper.core.record import TrialRecord
from sweeper.results.numbers.sensitivity import MIN_MEASURED, Sensitivity, sensitivity, terrain
from sweeper.schema import SweepSpec
from sweeper.schema.neighbours import find_nearest, neighbours

SPACE = {
    "batch_size": {"type": "int", "low": 64, "high": 2048, "log": True},
    "loader.kind": {"type": "categorical", "choices": ["workers", "resident"]},
    "loader.num_workers": {"type": "int", "low": 1, "high": 4, "when": {"loader.kind": "workers"}},
    "precision.amp": {"type": "categorical", "choices": ["fp32", "bf16", "fp16"]},
    "model.width": {"type": "categorical", "choices": [8, 16]},
}
SPEC = SweepSpec.from_dict(
    {
        "name": "toy",
        "pipeline": "toy_pipeline",
        "space": SPACE,
        "baseline": {"batch_size": 64},
        "constraints": {"val_loss": {"max_ratio_to_baseline": 1.02}},
    }
)
BEST = {"batch_size": 512, "loader.kind": "resident", "precision.amp": "bf16", "model.width": 8}


def speed(params) -> float:
    """A parabola over octaves with its top at 512, and factors."""
    octaves = math.log2(params["batch_size"] / 512)
    kind = 1.0 if params["loader.kind"] == "resident" else 0.1 * params["loader.num_workers"]
    amp = {"fp32": 0.8, "bf16": 1.0, "fp16": 0.9}[params["precision.amp"]]
    return 1e4 * kind * amp * math.exp(-0.1 * octaves**2) * (2 if params["model.width"] == 8 else 1)


def trial(number: int = 1, outcome=None, violations=None, **changes) -> TrialRecord:
    params = {"loader.num_workers": 1, **BEST}
    params |= {name.replace("__", "."): value for name, value in changes.items()}
    return TrialRecord(
        number=number,
        uid=str(number),
        stage="search",
        config=SPEC.config(params),
        outcome=outcome or synthetic(speed(params)),
        violations=violations or {},
    )


def by_place(found) -> dict:
    return {(each.name, each.value): (each.how, each.ratio) for each in found}


@pytest.mark.parametrize(
    ("parameter", "value", "beside"),
    [
        ({"type": "int", "low": 64, "high": 2048, "log": True}, 300, [150, 600]),
        # What is left of the range, where that is a fifth of the way.
        ({"type": "int", "low": 64, "high": 2048, "log": True}, 1100, [550, 2048]),
        ({"type": "int", "low": 64, "high": 2048, "log": True}, 1722, [861, 2048]),
        ({"type": "int", "low": 64, "high": 2048, "log": True}, 1900, [950]),
        ({"type": "int", "low": 0, "high": 4}, 4, [3]),
        ({"type": "int", "low": 0, "high": 100, "step": 4}, 40, [32, 48]),
        ({"type": "float", "low": 0.0, "high": 0.5, "step": 0.1}, 0.2, [0.1, 0.3]),
        ({"type": "float", "low": 0.0, "high": 1.0}, 0.5, [0.4, 0.6]),
        ({"type": "float", "low": 1e-4, "high": 1e-2, "log": True}, 1e-3, [5e-4, 2e-3]),
        ({"type": "categorical", "choices": [128, 32, 64]}, 64, [32, 128]),
        ({"type": "categorical", "choices": [128, 32, 64]}, 32, [64]),
        ({"type": "categorical", "choices": ["a", "b", "c"]}, "b", ["a", "c"]),
        ({"type": "categorical", "choices": [True, False]}, True, [False]),
        # A reference may win; it need not lie in the space.
        ({"type": "int", "low": 64, "high": 2048, "log": True}, 8, []),
        ({"type": "categorical", "choices": ["a", "b"]}, "c", ["a", "b"]),
    ],
)
def test_neighbours(parameter, value, beside):
    spec = SweepSpec.model_validate({**SPEC.to_dict(), "space": {"batch_size": parameter}})
    assert neighbours(spec.space["batch_size"], value) == beside


def test_a_trial_halfway_to_the_neighbour_or_beyond_stands_for_it():
    batch = SPEC.space["batch_size"]
    assert find_nearest(batch, 512, 1024, [900, 1100]) == 1100
    assert find_nearest(batch, 512, 1024, [700, 300]) is None
    assert find_nearest(batch, 512, 256, [300, 1024]) == 300
    assert find_nearest(SPEC.space["loader.kind"], "resident", "workers", ["resident"]) is None


def test_a_trial_that_differs_in_one_thing_is_a_measurement():
    """The rest says nothing: others differ in two things, were ended by the environment, or still run."""
    records = [
        trial(1),
        trial(2, batch_size=300),
        trial(3, batch_size=1024, outcome=Failure(kind=FailureKind.OOM, message="full")),
        trial(4, precision__amp="fp16", violations={"val_loss": 0.1}),
        trial(5, precision__amp="fp32", batch_size=300),
        trial(6, precision__amp="fp32", outcome=Failure(kind=FailureKind.LOST, message="gone")),
        dataclasses.replace(trial(7, precision__amp="fp32"), outcome=None),
        trial(8, model__width=16),
    ]
    found = by_place(sensitivity(records[0], records, SPEC))
    assert found == {
        ("batch_size", 300): ("measured", pytest.approx(speed({**BEST, "batch_size": 300}) / speed(BEST))),
        ("batch_size", 1024): ("measured", 0.0),
        ("precision.amp", "fp16"): ("measured", 0.0),
    }


def test_a_choice_brings_along_what_comes_into_effect_with_it():
    records = [trial(1), *(trial(1 + n, loader__kind="workers", loader__num_workers=n) for n in (1, 3, 2))]
    found = by_place(sensitivity(records[0], records, SPEC))
    assert found == {("loader.kind", "workers"): ("measured", pytest.approx(0.3))}
    # The other way round, what goes out of effect does not count as a difference.
    there = by_place(sensitivity(records[2], records, SPEC))
    assert there[("loader.kind", "resident")] == ("measured", pytest.approx(1 / 0.3))
    assert there[("loader.num_workers", 2)] == ("measured", pytest.approx(2 / 3))


def scattered(count: int) -> list[TrialRecord]:
    """Trials all over the space, none of them beside the winner, and no fp16."""
    rng, records = random.Random(1), [trial(0)]
    while len(records) < count:
        one = trial(
            len(records),
            batch_size=rng.choice([64, 128, 2000]),
            loader__kind=rng.choice(["workers", "resident"]),
            loader__num_workers=rng.choice([1, 4]),
            precision__amp=rng.choice(["fp32", "bf16"]),
            model__width=rng.choice([8, 16]),
        )
        records.append(one)
    return records


def test_what_no_trial_measured_is_predicted_from_all():
    records = scattered(60)
    # A plain script, in ways that the space does not have: it must not count.
    plain = records[1].config.replace({"device.malloc": "default"})
    records.append(dataclasses.replace(records[1], config=plain, outcome=synthetic(1.0)))
    found = by_place(sensitivity(records[0], records, SPEC))
    assert {how for how, _ in found.values()} == {"predicted"}
    truth = {
        ("batch_size", 256): math.exp(-0.1),
        ("batch_size", 1024): math.exp(-0.1),
        ("loader.kind", "workers"): 0.4,
        ("precision.amp", "fp32"): 0.8,
    }
    assert found.keys() == truth.keys()
    for place, ratio in truth.items():
        assert found[place][1] == pytest.approx(ratio, rel=0.08), place


def test_a_number_that_was_not_varied_where_it_has_an_effect_is_not_predicted():
    """All workers had four processes; that the others had none does not tell what two would do."""
    records = [trial(0, loader__kind="workers", loader__num_workers=4)]
    records += [one for one in scattered(40) if one.config.loader.num_workers != 1]
    names = {each.name for each in sensitivity(records[0], records, SPEC)}
    assert names == {"batch_size", "loader.kind", "precision.amp"}


def test_too_few_trials_predict_nothing():
    records = scattered(MIN_MEASURED)
    assert sensitivity(records[0], records, SPEC)
    assert sensitivity(records[0], records[1:], SPEC) == ()
    lost = dataclasses.replace(records[0], outcome=Failure(kind=FailureKind.LOST, message="gone"))
    assert sensitivity(lost, records, SPEC) == ()


def beside(name: str, value, ratio: float) -> Sensitivity:
    return Sensitivity(name=name, value=value, ratio=ratio, how="measured")


def test_a_plateau_is_one_of_numbers():
    flat = [beside("batch_size", 256, 0.96), beside("batch_size", 1024, 1.01)]
    choice = beside("loader.kind", "workers", 0.2)
    assert terrain([choice]) is None
    found = terrain([*flat, choice])
    assert found is not None
    assert (found.word, found.costliest) == ("plateau", flat[0])
    steep = beside("loader.num_workers", 1, 0.94)
    found = terrain([*flat, steep])
    assert found is not None
    assert (found.word, found.costliest) == ("peak", steep)
