"""Finds the neighbours of a parameter's value, and distances between values."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TypeGuard

from sweeper.core.config import Scalar
from sweeper.schema.space import CategoricalParameter, FloatParameter, IntParameter, Parameter, is_same

STEPS_OF_A_RANGE = 10
END_WAY = 0.2
"""Share of the way to the next number from which the end of a range counts as that number."""


def is_number(value: Scalar) -> TypeGuard[int | float]:
    """Returns whether a value is a number; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def place(parameter: Parameter, value: Scalar) -> float | None:
    """Returns a value's place on the parameter's scale: log2 in a `log` range or among positive choices.

    It is None if the value or the parameter is not a number.
    """
    if not is_number(value):
        return None
    if isinstance(parameter, CategoricalParameter) and not all(map(is_number, parameter.choices)):
        return None
    if is_log(parameter):
        return math.log2(value) if value > 0 else None
    return float(value)


def is_log(parameter: Parameter) -> bool:
    """Returns whether a parameter's numbers are compared by their ratios."""
    if isinstance(parameter, CategoricalParameter):
        return all(is_number(choice) and choice > 0 for choice in parameter.choices)
    return parameter.log


def neighbours(parameter: Parameter, value: Scalar) -> list[Scalar]:
    """Returns the values next to one: the next number on each side, or all others if they have no order.

    The next number is the next choice; in a `log` range, half or twice the value; in another range, one step
    away, or a tenth of the range if that is more. Near the end of a range it is the end, if that is at least
    `END_WAY` as far.
    """
    if isinstance(parameter, CategoricalParameter):
        others = [choice for choice in parameter.choices if not is_same(choice, value)]
        mine = place(parameter, value)
        if mine is None:
            return others
        places = {choice: at for choice in others if (at := place(parameter, choice)) is not None}
        order = sorted(places, key=places.__getitem__)
        below, above = (
            [choice for choice in order if (places[choice] < mine) == lower] for lower in (True, False)
        )
        return [*below[-1:], *above[:1]]
    if not is_number(value) or not parameter.contains(value):
        return []
    if parameter.log:
        wanted = (value / 2, value * 2)
    else:
        tenth, step = (parameter.high - parameter.low) / STEPS_OF_A_RANGE, parameter.step
        width = tenth if step is None else step * max(1, round(tenth / step))
        wanted = (value - width, value + width)
    return [
        number
        for number in (_nearest_number(parameter, value, target) for target in wanted)
        if number is not None
    ]


def _nearest_number(parameter: IntParameter | FloatParameter, value: float, wanted: float) -> Scalar:
    """Returns the number in range nearest to `wanted`; None if it is less than `END_WAY` of the way there."""
    inside = min(max(wanted, parameter.low), parameter.high)
    # A user expects 0.1 + 0.2 to be 0.3.
    number = round(inside) if isinstance(parameter, IntParameter) else float(f"{inside:.12g}")
    if not parameter.contains(number) or _way(parameter, value, wanted, number) < END_WAY:
        return None
    return number


def find_nearest(
    parameter: Parameter, value: Scalar, neighbour: Scalar, candidates: Collection[Scalar]
) -> Scalar:
    """Returns the value in `candidates` closest to a neighbour, if it is at 0.5 to 1.5 of the way to it.

    It is None if there is no such value.
    """
    ways = {candidate: _way(parameter, value, neighbour, candidate) for candidate in candidates}
    near = [candidate for candidate, way in ways.items() if 0.5 <= way <= 1.5]
    return min(near, key=lambda candidate: abs(ways[candidate] - 1), default=None)


def _way(parameter: Parameter, value: Scalar, to: Scalar, reached: Scalar) -> float:
    """Returns the share of the way from `value` to `to` at which `reached` is; 0 or 1 without an order."""
    start, end, now = (place(parameter, point) for point in (value, to, reached))
    if start is None or end is None or now is None:
        return float(is_same(to, reached))
    return (now - start) / (end - start)
