"""Converts parameters of a specification to Optuna distributions."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from decimal import Decimal

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from sweeper.core.config import Scalar
from sweeper.schema import CategoricalParameter, IntParameter, Parameter, SweepSpec


def distribution(parameter: Parameter) -> BaseDistribution:
    """Returns the distribution over the parameter's values; Optuna does not see `when`."""
    if isinstance(parameter, CategoricalParameter):
        return CategoricalDistribution(parameter.choices)
    # Optuna requires a range that is a whole number of steps.
    if isinstance(parameter, IntParameter):
        step = 1 if parameter.log else parameter.step
        high = parameter.low + (parameter.high - parameter.low) // step * step
        return IntDistribution(parameter.low, high, log=parameter.log, step=step)
    last = parameter.high
    if parameter.step is not None:
        # In decimals, like Optuna: 0.3 is three steps of 0.1, but not in binary.
        low, end, width = (Decimal(str(value)) for value in (parameter.low, last, parameter.step))
        last = float(low + (end - low) // width * width)
    return FloatDistribution(parameter.low, last, log=parameter.log, step=parameter.step)


def distributions_of(spec: SweepSpec) -> dict[str, BaseDistribution]:
    """Returns the distribution of each parameter of the space, by name."""
    return {name: distribution(parameter) for name, parameter in spec.space.items()}


def values(of: BaseDistribution) -> Sequence[Scalar]:
    """Returns every value of a distribution with finitely many, as Optuna spells them."""
    if isinstance(of, CategoricalDistribution):
        choices: Sequence[Scalar] = of.choices
        return choices
    if isinstance(of, IntDistribution):
        return range(of.low, of.high + 1, of.step)
    assert isinstance(of, FloatDistribution)
    if of.low == of.high:
        return [of.low]
    count = round((of.high - of.low) / of.step) + 1
    # 0.001 + 9 * 0.001 is more than 0.01.
    return [min(of.low + i * of.step, of.high) for i in range(count)]


def spell(of: BaseDistribution, value: Scalar) -> Scalar:
    """Returns a value as Optuna spells it: 0.001 + 3 * 0.001 is not quite 0.004."""
    if not isinstance(of, FloatDistribution) or of.step is None or not isinstance(value, int | float):
        return value
    exact: float = min(of.low + round((value - of.low) / of.step) * of.step, of.high)
    return exact


def value_in(parameter: Parameter, value: Scalar) -> Scalar:
    """Returns `value` if the parameter contains it, else the nearest number, else the first value."""
    if value is not None and parameter.contains(value):
        return parameter.like(value)
    return nearest_value(parameter, value) if isinstance(value, int | float) else parameter.first_value()


def nearest_value(parameter: Parameter, value: float) -> Scalar:
    """Returns the value of a parameter that is nearest to a number."""
    if isinstance(parameter, CategoricalParameter):
        numbers = [choice for choice in parameter.choices if isinstance(choice, int | float)]
        return min(numbers, key=lambda number: abs(number - value)) if numbers else parameter.first_value()
    of = distribution(parameter)
    assert isinstance(of, IntDistribution | FloatDistribution)
    value = min(max(value, of.low), of.high)
    if isinstance(of, IntDistribution):
        whole: int = of.low + round((value - of.low) / of.step) * of.step
        return whole
    return parameter.like(spell(of, value))


def draw_value(of: BaseDistribution, rng: random.Random) -> Scalar:
    """Returns a random value of a distribution, uniform over its range (or the range's logarithm)."""
    if isinstance(of, IntDistribution | FloatDistribution) and of.log:
        number: float = math.exp(rng.uniform(math.log(of.low), math.log(of.high)))
        number = min(max(number, of.low), of.high)
        return round(number) if isinstance(of, IntDistribution) else number
    if isinstance(of, FloatDistribution) and of.step is None:
        number = rng.uniform(of.low, of.high)
        return number
    return rng.choice(values(of))


def combinations(spec: SweepSpec) -> Mapping[str, dict[str, Scalar]]:
    """Returns the parameters of every configuration of a finite space, by its key."""
    params_by_key: dict[str, dict[str, Scalar]] = {}
    every = map(values, distributions_of(spec).values())
    for combination in itertools.product(*every):
        params = dict(zip(spec.space, combination, strict=True))
        params_by_key.setdefault(spec.config(params).key(), params)
    return params_by_key
