"""From the parameters of a specification to Optuna's distributions."""

from __future__ import annotations

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from sweeper.spec import CategoricalParameter, IntParameter, Parameter


def distribution(parameter: Parameter) -> BaseDistribution:
    """Returns the distribution over the parameter's values; `when` is not Optuna's concern."""
    if isinstance(parameter, CategoricalParameter):
        return CategoricalDistribution(parameter.choices)
    if isinstance(parameter, IntParameter):
        step = 1 if parameter.log else parameter.step
        # Optuna asks for a range that is a whole number of steps.
        high = parameter.low + (parameter.high - parameter.low) // step * step
        return IntDistribution(parameter.low, high, log=parameter.log, step=step)
    return FloatDistribution(parameter.low, parameter.high, log=parameter.log, step=parameter.step)
