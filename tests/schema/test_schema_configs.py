import random

import pytest

from sweeper.core.config import TrialConfig
from sweeper.errors import UserError
from sweeper.schema import CategoricalParameter, FloatParameter, SweepSpec, load

PARAMS = {
    "batch_size": 128,
    "loader.kind": "workers",
    "loader.num_workers": 3,
    "loader.prefetch_factor": 4,
    "precision.amp": "bf16",
    "precision.tf32": True,
    "compile.mode": "eager",
    "model.hidden_size": 128,
}


@pytest.fixture
def spec(whole):
    return load(whole)


def make(**sections):
    return SweepSpec.from_dict({"name": "a", "pipeline": "p", "space": {}, "baseline": {}, **sections})


def draw(parameter, rng):
    if isinstance(parameter, CategoricalParameter):
        return rng.choice(parameter.choices)
    if isinstance(parameter, FloatParameter):
        return rng.uniform(parameter.low, parameter.high)
    return rng.randrange(parameter.low, parameter.high + 1, parameter.step)


def test_a_config_is_fix_and_params_over_the_defaults(spec):
    expected = TrialConfig().replace({**PARAMS, "optimizer.lr_rule": "sqrt", "optimizer.lr_batch_size": 64})
    assert spec.config(PARAMS) == expected


def test_an_inactive_parameter_takes_its_default_and_so_does_what_looks_at_it():
    spec = make(
        space={
            "seed": {"type": "int", "low": 1, "high": 9, "when": {"accumulate_steps": {"min": 2}}},
            "accumulate_steps": {
                "type": "int",
                "low": 1,
                "high": 8,
                "when": {"precision.amp": ["bf16", "fp16"]},
            },
            "precision.amp": {"type": "categorical", "choices": ["fp32", "bf16", "fp16"]},
        }
    )
    params = {"seed": 5, "accumulate_steps": 4, "precision.amp": "bf16"}

    def short(**changes):
        config = spec.config({**params, **changes})
        return config.seed, config.accumulate_steps

    assert short() == (5, 4)
    assert short(accumulate_steps=1) == (0, 1)
    assert short(**{"precision.amp": "fp32"}) == (0, 1)


def test_equal_trials_have_one_key(spec):
    resident = {**PARAMS, "loader.kind": "resident"}
    assert spec.config(resident).key() == spec.config({**resident, "loader.num_workers": 9}).key()
    assert spec.config(PARAMS).key() != spec.config({**PARAMS, "loader.num_workers": 9}).key()


def test_references_are_as_written(spec):
    baseline, other = spec.references()
    assert baseline == spec.baseline_config()
    assert baseline.loader.kind == "rows"
    assert baseline.loader.num_workers == 4
    assert (other.batch_size, other.loader.num_workers) == (256, 40)
    assert [c.optimizer.lr_batch_size for c in (baseline, other)] == [64, 64]
    assert spec.params_of(baseline) is None


def test_also_try_takes_the_work_and_the_optimizer_from_the_baseline_and_nothing_else():
    spec = make(
        baseline={"model.width": 8, "data.length": 3, "optimizer.lr": 0.5, "batch_size": 32, "seed": 1},
        also_try=[{"batch_size": 64}, {"batch_size": 64, "model.width": 9, "optimizer.lr": 0.1}],
        fix={"optimizer.lr": 0.2, "accumulate_steps": 2},
    )
    _, first, second = spec.references()
    assert first == TrialConfig().replace(
        {"model.width": 8, "data.length": 3, "optimizer.lr": 0.5, "batch_size": 64, "accumulate_steps": 2}
    )
    assert second == first.replace({"batch_size": 64, "model.width": 9, "optimizer.lr": 0.1})


def test_a_searched_config_takes_missing_work_and_optimiser_from_the_baseline():
    spec = make(baseline={"model.width": 8, "optimizer.lr": 0.5, "seed": 4})
    assert spec.config({}) == TrialConfig().replace({"model.width": 8, "optimizer.lr": 0.5})


@pytest.mark.parametrize(
    ("fix", "expected"),
    [
        ({"optimizer.lr_rule": "linear"}, 96),
        ({"optimizer.lr_rule": "linear", "optimizer.lr_batch_size": 7}, 7),
        ({}, 0),
    ],
)
def test_the_learning_rate_is_meant_for_the_baselines_global_batch(fix, expected):
    spec = make(fix=fix, baseline={"batch_size": 32, "accumulate_steps": 3}, also_try=[{"batch_size": 1}])
    configs = [spec.config({}), *spec.references()]
    assert [config.optimizer.lr_batch_size for config in configs] == [expected] * 3


@pytest.mark.parametrize("seed", range(300))
def test_params_of_inverts_config(spec, seed):
    rng = random.Random(seed)
    config = spec.config({name: draw(parameter, rng) for name, parameter in spec.space.items()})
    params = spec.params_of(config)
    assert params is not None
    assert all(spec.space[name].contains(value) for name, value in params.items())
    assert spec.config(params).key() == config.key()


@pytest.mark.parametrize(
    "change",
    [{"batch_size": 63}, {"loader.kind": "rows"}, {"model.hidden_size": 65}, {"seed": 1}, {"model.x": 1}],
)
def test_params_of_a_config_outside_is_none(spec, change):
    assert spec.params_of(spec.config(PARAMS).replace(change)) is None


def test_params_of_ignores_what_has_no_effect():
    spec = make(
        space={
            "loader.kind": {"type": "categorical", "choices": ["workers", "resident"]},
            "loader.num_workers": {"type": "int", "low": 1, "high": 4},
        }
    )
    assert spec.params_of(TrialConfig()) == {"loader.kind": "resident", "loader.num_workers": 1}


@pytest.mark.parametrize(
    ("parameter", "written", "meant"),
    [
        ({"type": "float", "low": 0, "high": 1}, 0, 0.0),
        ({"type": "categorical", "choices": [0.0, 0.5]}, 0, 0.0),
        ({"type": "int", "low": 0, "high": 3}, 2.0, 2),
    ],
)
def test_a_baseline_in_the_space_is_found_there_however_its_number_is_written(parameter, written, meant):
    spec = make(
        space={"model.dropout": parameter},
        baseline={"model.dropout": written},
        constraints={"val_loss": {"max": 1}},
    )
    assert repr(spec.baseline_config().model["dropout"]) == repr(meant)
    assert spec.params_of(spec.baseline_config()) == {"model.dropout": meant}


def test_an_int_parameter_on_a_number_field_round_trips():
    spec = make(space={"optimizer.clip_norm": {"type": "int", "low": 0, "high": 5}})
    config = spec.config({"optimizer.clip_norm": 3})
    assert repr(config.optimizer.clip_norm) == "3.0"
    assert repr(spec.params_of(config)) == "{'optimizer.clip_norm': 3}"


def test_varied_and_size(spec):
    assert spec.varied_names() == tuple(PARAMS)
    assert spec.size() == 4033 * 2 * 17 * 3 * 3 * 2 * 4 * 3
    assert make(space={"optimizer.lr": {"type": "float", "low": 0.1, "high": 1}}).size() is None
    assert make().size() == 1


def test_a_path_replaces_the_source():
    assert make(data={"source": "synthetic", "path": "x", "limit": 3}).data == {"path": "x", "limit": 3}
    assert make(data={"source": "synthetic"}).data == {"source": "synthetic"}


def test_without_some_choices(spec):
    less = spec.without({"compile.mode": ["max-autotune"], "memory_format": ["channels_last"]})
    assert less.space["compile.mode"].choices == ("eager", "default", "reduce-overhead")
    assert less.varied_names() == spec.varied_names()
    assert spec.space["compile.mode"].size() == 4


def test_a_last_choice_moves_into_fix_and_settles_what_looks_at_it(spec):
    workers = spec.without({"loader.kind": ["resident"]})
    assert workers.fix == {"optimizer.lr_rule": "sqrt", "loader.kind": "workers"}
    assert workers.space["loader.num_workers"].when == {}
    assert workers.config(PARAMS) == spec.config(PARAMS)

    resident = spec.without({"loader.kind": ["workers"]})
    assert set(spec.varied_names()) - set(resident.varied_names()) == {
        "loader.kind",
        "loader.num_workers",
        "loader.prefetch_factor",
    }
    assert resident.config(PARAMS) == spec.config({**PARAMS, "loader.kind": "resident"})


def test_a_conditional_parameter_with_one_choice_left_still_has_two_states(spec):
    less = spec.without({"loader.prefetch_factor": [2, 4]})
    assert "loader.prefetch_factor" in less.varied_names()
    params = {**PARAMS, "loader.prefetch_factor": 8}
    assert less.config(params).loader.prefetch_factor == 8
    assert less.config({**params, "loader.num_workers": 0}).loader.prefetch_factor == 2


def test_a_list_condition_loses_the_values_that_went():
    spec = make(
        space={
            "precision.amp": {"type": "categorical", "choices": ["fp32", "bf16", "fp16"]},
            "precision.tf32": {
                "type": "categorical",
                "choices": [True, False],
                "when": {"precision.amp": ["fp32", "fp16"]},
            },
        }
    ).without({"precision.amp": ["fp16"]})
    assert spec.space["precision.tf32"].when == {"precision.amp": ("fp32",)}


def test_a_restricted_spec_is_a_spec(spec):
    for less in (
        spec.without({"loader.kind": ["workers"]}),
        spec.without({"loader.kind": ["resident"]}),
        spec.clip("batch_size", 64),
        spec.clip("loader.num_workers", 0),
    ):
        assert SweepSpec.from_dict(less.to_dict()) == less


def test_no_choice_left_is_the_users_mistake(spec):
    with pytest.raises(UserError, match=r"`precision.tf32` needs a choice .* but got only True, False"):
        spec.without({"precision.tf32": [True, False]})


def test_clipped(spec):
    assert spec.clip("batch_size", 512.9).space["batch_size"].high == 512
    assert spec.clip("batch_size", 10_000) == spec
    assert spec.clip("batch_size", 64).fix["batch_size"] == 64
    assert spec.clip("model.hidden_size", 128).space["model.hidden_size"].choices == (64, 128)
    assert spec.clip("accumulate_steps", 1) == spec
    assert "loader.prefetch_factor" not in spec.clip("loader.num_workers", 0).varied_names()
    with pytest.raises(UserError, match="`batch_size` must not exceed 63 here, but got low=64"):
        spec.clip("batch_size", 63)
