"""Neighbours of a parameter's value, and distances between values."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TypeGuard

from sweeper.core.config import Scalar
from sweeper.spec.space import CategoricalParameter, FloatParameter, IntParameter, Parameter, same

STEPS_OF_A_RANGE = 10


def is_number(value: Scalar) -> TypeGuard[int | float]:
    """Returns whether a value has an order; true and false have none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def place(parameter: Parameter, value: Scalar) -> float | None:
    """Returns where a value lies on the parameter's scale: its log2 in a `log` range and of positive choices.

    None where it has no place: it, or the parameter, is not a number.
    """
    if not is_number(value):
        return None
    if isinstance(parameter, CategoricalParameter):
        numbers = [choice for choice in parameter.choices if is_number(choice)]
        if len(numbers) < len(parameter.choices):
            return None
        log = min(numbers) > 0
    else:
        log = parameter.log
    if log:
        return math.log2(value) if value > 0 else None
    return float(value)


def neighbours(parameter: Parameter, value: Scalar) -> list[Scalar]:
    """Returns the values beside one: the next number on each side where there is an order, else all others.

    Next is the next choice; half and twice in a `log` range; else a step, or a tenth of the range where
    that is more. At the end of a range it is what is left, if that is half of it.
    """
    if isinstance(parameter, CategoricalParameter):
        others = [choice for choice in parameter.choices if not same(choice, value)]
        mine = place(parameter, value)
        if mine is None:
            return others
        places = {choice: at for choice in others if (at := place(parameter, choice)) is not None}
        order = sorted(places, key=places.__getitem__)
        below, above = ([each for each in order if (places[each] < mine) == lower] for lower in (True, False))
        return [*below[-1:], *above[:1]]
    if not is_number(value) or not parameter.contains(value):
        return []
    if parameter.log:
        wanted = (value / 2, value * 2)
    else:
        tenth, step = (parameter.high - parameter.low) / STEPS_OF_A_RANGE, parameter.step
        width = tenth if step is None else step * max(1, round(tenth / step))
        wanted = (value - width, value + width)
    return [each for each in (_within(parameter, value, each) for each in wanted) if each is not None]


def _within(parameter: IntParameter | FloatParameter, value: float, wanted: float) -> Scalar:
    """The number nearest to `wanted` that the range has; None where that is less than half of the way."""
    inside = min(max(wanted, parameter.low), parameter.high)
    # 0.1 + 0.2 is 0.3 to a person.
    number = round(inside) if isinstance(parameter, IntParameter) else float(f"{inside:.12g}")
    if not parameter.contains(number) or _way(parameter, value, wanted, number) < 0.5:
        return None
    return number


def nearest(parameter: Parameter, value: Scalar, neighbour: Scalar, among: Collection[Scalar]) -> Scalar:
    """Returns which of the values `among` stands for a neighbour: half of the way to it to one and a half.

    None where none does.
    """
    ways = {each: _way(parameter, value, neighbour, each) for each in among}
    near = [each for each, way in ways.items() if 0.5 <= way <= 1.5]
    return min(near, key=lambda each: abs(ways[each] - 1), default=None)


def _way(parameter: Parameter, value: Scalar, to: Scalar, reached: Scalar) -> float:
    """How much of the way from one value to another is behind at a third: all or none without an order."""
    start, end, now = (place(parameter, each) for each in (value, to, reached))
    if start is None or end is None or now is None:
        return float(same(to, reached))
    return (now - start) / (end - start)
