"""Optuna's distributions: the same values as the specification's parameters, and no warnings."""

from __future__ import annotations

import random

import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution

from sweeper.schema import CategoricalParameter, FloatParameter, IntParameter
from sweeper.search.distributions import distribution, draw_value, nearest_value, values

FLOATS = [(0.0, 1.0, 0.1), (0.0, 0.95, 0.1), (0.1, 0.35, 0.05), (0.001, 0.0105, 0.001), (1e-4, 1e-3, 3e-4)]


def float_of(low: float, high: float, step: float | None = None, log: bool = False) -> FloatParameter:
    return FloatParameter(type="float", low=low, high=high, step=step, log=log)


def int_of(low: int, high: int, step: int = 1, log: bool = False) -> IntParameter:
    return IntParameter(type="int", low=low, high=high, step=step, log=log)


def test_an_integer_range_ends_at_a_whole_step():
    assert distribution(int_of(0, 10, 4)) == IntDistribution(0, 8, step=4)
    assert distribution(int_of(64, 4096, log=True)) == IntDistribution(64, 4096, log=True)


@pytest.mark.parametrize(("low", "high", "step"), FLOATS)
def test_a_float_range_ends_at_a_whole_step_without_a_warning(low, high, step):
    parameter = float_of(low, high, step)
    made = distribution(parameter)
    assert isinstance(made, FloatDistribution)
    assert made.high <= high
    assert high - made.high < step
    assert len(values(made)) == parameter.size()


def test_a_continuous_float_keeps_its_range():
    assert distribution(float_of(1e-4, 1e-1, log=True)) == FloatDistribution(1e-4, 1e-1, log=True)


@pytest.mark.parametrize(("low", "high", "step"), FLOATS)
@pytest.mark.parametrize("sampler", [optuna.samplers.RandomSampler, optuna.samplers.TPESampler])
def test_listed_values_are_spelled_as_a_sampler_spells_them(low, high, step, sampler):
    of = distribution(float_of(low, high, step))
    study = optuna.create_study(sampler=sampler(seed=1))
    asked = set()
    for _ in range(40):
        trial = study.ask({"x": of})
        asked.add(trial.params["x"])
        study.tell(trial, trial.params["x"])
    assert asked <= set(values(of))


def test_choices_keep_their_order_and_their_types():
    made = distribution(CategoricalParameter(type="categorical", choices=(True, None, "a", 2.5)))
    assert list(values(made)) == [True, None, "a", 2.5]


@pytest.mark.parametrize(
    "parameter",
    [
        int_of(3, 11, 4),
        int_of(1, 1000, log=True),
        float_of(0.0, 1.0, 0.25),
        float_of(1e-5, 1e-1, log=True),
        float_of(-1.0, 1.0),
        CategoricalParameter(type="categorical", choices=(8, "x")),
    ],
)
def test_a_drawn_value_is_one_of_the_parameters_own(parameter):
    rng = random.Random(0)
    for _ in range(100):
        assert parameter.contains(draw_value(distribution(parameter), rng))


def test_draws_reach_both_ends_of_a_logarithmic_range():
    rng = random.Random(0)
    of = distribution(int_of(1, 1000, log=True))
    draws = [draw_value(of, rng) for _ in range(300)]
    assert sum(value < 32 for value in draws) > 100
    assert sum(value > 100 for value in draws) > 50


@pytest.mark.parametrize(
    ("parameter", "value", "expected"),
    [
        (int_of(32, 1000, 128), 1000, 928),
        (int_of(32, 1000, 128), 99, 160),
        (int_of(1, 100, 8), 100, 97),
        (int_of(64, 4096, log=True), 5000, 4096),
        (float_of(0.0, 0.95, 0.1), 0.95, 0.9),
        (float_of(1e-4, 1e-1, log=True), 3e-3, 3e-3),
        (float_of(0.0, 1.0), 7.0, 1.0),
    ],
)
def test_the_nearest_value_is_one_of_the_parameters(parameter, value, expected):
    """A step need not end at `high`, and Optuna refuses a value that is none of its own."""
    found = nearest_value(parameter, value)
    assert found == pytest.approx(expected)
    of = distribution(parameter)
    assert of._contains(of.to_internal_repr(found))
