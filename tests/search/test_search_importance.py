"""What mattered, by what the search was told: of surfaces whose answer is known."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from sweeper.core.config import Scalar
from sweeper.core.record import SearchResult
from sweeper.search.distributions import distribution, drawn
from sweeper.search.importance import FEWEST_TRIALS, importance
from sweeper.spec import SweepSpec

SPACE = {
    "batch_size": {"type": "int", "low": 64, "high": 1024, "log": True},
    "loader.kind": {"type": "categorical", "choices": ["workers", "resident"]},
    "loader.num_workers": {"type": "int", "low": 0, "high": 4, "when": {"loader.kind": "workers"}},
    "optimizer.lr": {"type": "float", "low": 1e-4, "high": 1e-2, "log": True},
}
MAXIMIZE, MINIMIZE = ({"maximize": "throughput"},), ({"minimize": "epoch_seconds"},)


def spec_of(objectives=MAXIMIZE) -> SweepSpec:
    return SweepSpec.from_dict(
        {
            "name": "toy",
            "pipeline": "toy_pipeline",
            "space": SPACE,
            "baseline": {"batch_size": 64},
            "objectives": list(objectives),
        }
    )


def told_of(spec: SweepSpec, values, count: int = 40, **fixed: Scalar) -> dict[int, SearchResult]:
    """Random trials; `values` of the parameters, and `fixed` ones by name, `__` for the dot."""
    rng, told = random.Random(0), {}
    for number in range(count):
        params = {name: drawn(distribution(p), rng) for name, p in spec.space.items()}
        params |= {name.replace("__", "."): value for name, value in fixed.items()}
        told[number] = SearchResult(params=params, values=values(params), constraints={"ran": 0.0})
    return told


@pytest.mark.parametrize(("objectives", "power"), [(MAXIMIZE, 1), (MINIMIZE, -1)])
def test_what_decides_comes_first_in_both_directions(objectives, power):
    """Only the best tenth is looked at: among the worst it is the learning rate that decides."""
    spec = spec_of(objectives)

    def reached(params):
        best = params["loader.kind"] == "workers" and params["batch_size"] > 512
        return ((1000.0 if best else 500.0 / params["optimizer.lr"] ** 0.05) ** power,)

    found = importance(spec, told_of(spec, reached))
    assert sum(found.values()) == pytest.approx(1)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert next(iter(found)) == "batch_size"
    assert found["batch_size"] > 2 * found["optimizer.lr"]


def test_with_two_objectives_it_is_the_front_that_counts():
    spec = spec_of([*MAXIMIZE, {"minimize": "val_loss"}])
    found = importance(spec, told_of(spec, lambda p: (float(p["batch_size"]), 1.0 / p["batch_size"])))
    assert next(iter(found)) == "batch_size"


def test_a_parameter_out_of_effect_says_nothing():
    """Where nothing loads with workers, their number was not varied; one trial more does not change that."""
    spec = spec_of()
    told = told_of(spec, lambda p: (float(p["batch_size"] * (1 + p["loader.num_workers"])),))
    alone = {n: t for n, t in told.items() if t.params["loader.kind"] == "resident"}
    found = importance(spec, alone)
    assert found.keys() == {"batch_size", "optimizer.lr"}
    one = next(n for n, t in told.items() if t.params["loader.kind"] == "workers")
    assert importance(spec, alone | {one: told[one]}).keys() == found.keys() | {"loader.kind"}


def test_what_the_device_cannot_do_was_not_told():
    """`loader.kind` has left the space: its one choice holds, and so does what hangs on it."""
    spec = spec_of()
    told = told_of(spec, lambda p: (float(1 + p["loader.num_workers"]),), batch_size=64)
    cut = {
        n: SearchResult(
            params={k: v for k, v in t.params.items() if k != "loader.kind"},
            values=t.values,
            constraints=t.constraints,
        )
        for n, t in told.items()
    }
    found = importance(spec, cut)
    assert list(found) == ["loader.num_workers", "optimizer.lr"]


def test_too_little_to_say():
    spec = spec_of()

    def fast(params):
        return (float(params["batch_size"]),)

    assert importance(spec, told_of(spec, fast, FEWEST_TRIALS))
    assert importance(spec, told_of(spec, fast, FEWEST_TRIALS - 1)) == {}
    silent = told_of(spec, fast, FEWEST_TRIALS)
    silent[0] = SearchResult(params=silent[0].params, values=None, constraints={})
    assert importance(spec, silent) == {}
    assert importance(spec, told_of(spec, lambda p: (1.0,))) == {}
    same = told_of(spec, fast, batch_size=64, loader__kind="resident", optimizer__lr=1e-3)
    assert (
        importance(
            spec,
            {n: SearchResult(params=t.params, values=(float(n),), constraints={}) for n, t in same.items()},
        )
        == {}
    )


def test_scikit_learn_is_left_out_and_still_there_for_others():
    """Seconds of import, for evaluators that are not used here; in a process that has neither yet."""
    code = (
        "import sys, test_search_importance as here\n"
        "spec = here.spec_of()\n"
        "assert here.importance(spec, here.told_of(spec, lambda params: (params['batch_size'],)))\n"
        "assert not [name for name in sys.modules if name.startswith('sklearn')]\n"
        "from optuna.importance import FanovaImportanceEvaluator\n"
        "FanovaImportanceEvaluator()\n"
        "import sklearn\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)
