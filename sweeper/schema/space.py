"""Defines the parameters of a search space, their values, and the conditions under which they act."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from sweeper.core.config import Scalar

MAX_CHOICES = 1000


class Section(BaseModel):
    """The base of all parts of a specification: frozen, strict, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class SparseSection(Section):
    """A section that is written without empty keys."""

    @model_serializer(mode="wrap")
    def _write(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in write(self).items() if value is not None and value != {}}


def _scalar(value: Any) -> Any:
    if not isinstance(value, Scalar):
        raise ValueError("must be a single value")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


AnyScalar = Annotated[Scalar, BeforeValidator(_scalar)]
Number = Annotated[int | float, BeforeValidator(_number)]
FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]


class Bounds(SparseSection):
    """A condition on a number: `{min: 1}`, `{max: 8}` or both, ends included."""

    min: Number | None = None
    max: Number | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Bounds:
        if self.min is None and self.max is None:
            raise ValueError("needs `min` or `max`")
        return self


def _condition(value: Any) -> Any:
    if isinstance(value, Bounds):
        return value
    if isinstance(value, Mapping):
        return Bounds.model_validate(value)
    if isinstance(value, list | tuple):
        return tuple(_scalar(item) for item in value)
    return _scalar(value)


Condition = Annotated[Bounds | tuple[Scalar, ...] | Scalar, BeforeValidator(_condition)]
"""The condition of `when` on another parameter: a value, one of several, or a range."""


def is_same(left: Scalar, right: Scalar) -> bool:
    """Returns whether two values are equal: 1 and 1.0 are, 1 and true are not."""
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def holds(condition: Condition, value: Scalar) -> bool:
    """Returns whether `value` meets `condition`."""
    if isinstance(condition, Bounds):
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        low = -math.inf if condition.min is None else condition.min
        return low <= value <= (math.inf if condition.max is None else condition.max)
    if isinstance(condition, tuple):
        return any(is_same(item, value) for item in condition)
    return is_same(condition, value)


def acts(name: str, space: Mapping[str, Parameter], values: Mapping[str, Scalar]) -> bool:
    """Returns whether parameter `name` has an effect given `values`.

    It does if its `when` conditions hold, and those of the parameters that they name. A condition on a name
    without a value was decided when the space was restricted, and holds.
    """
    return all(
        target not in values or (holds(condition, values[target]) and acts(target, space, values))
        for target, condition in space[name].when.items()
    )


class _NumericParameter(SparseSection):
    """The base of both kinds of number parameter."""

    type: str
    low: int | float
    high: int | float
    log: bool = False
    step: int | float | None = None
    when: dict[str, Condition] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _range(self) -> _NumericParameter:
        if self.low > self.high:
            raise ValueError("needs `low <= high`")
        if self.log and self.low <= 0:
            raise ValueError("needs `low > 0` where `log: true`")
        if not math.isfinite((self.high - self.low) / (self.step or 1)):
            raise ValueError("needs a finite number of steps from `low` to `high`")
        return self

    def contains(self, value: Scalar) -> bool:
        """Returns whether the parameter can take `value`."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        steps = (value - self.low) / self.step if self.step else 0.0
        return self.low <= value <= self.high and abs(steps - round(steps)) < 1e-9 * max(1.0, steps)

    def first_value(self) -> Scalar:
        """Returns some value of the parameter, always the same."""
        return self.low

    def size(self) -> int | None:
        """Returns the number of values; None if they are continuous."""
        if self.low == self.high:
            return 1
        return None if self.step is None else math.floor((self.high - self.low) / self.step + 1e-9) + 1

    def may_meet(self, condition: Condition) -> bool:
        """Returns whether some value of the parameter meets `condition`."""
        if isinstance(condition, Bounds):
            low = self.low if condition.min is None else condition.min
            return low <= self.high and (condition.max is None or condition.max >= max(low, self.low))
        return any(map(self.contains, condition if isinstance(condition, tuple) else (condition,)))


class IntParameter(_NumericParameter):
    """Whole numbers from `low` to `high`, both included, `step` apart."""

    type: Literal["int"]
    low: int
    high: int
    step: Annotated[int, Field(ge=1)] = 1

    @model_validator(mode="after")
    def _log_or_step(self) -> IntParameter:
        if self.log and self.step > 1:
            raise ValueError("takes either `log: true` or a `step`")
        return self

    def like(self, value: Scalar) -> Scalar:
        """Returns a contained `value` as this parameter writes it."""
        return int(value)  # type: ignore[arg-type]


class FloatParameter(_NumericParameter):
    """Numbers from `low` to `high`, both included; continuous without a `step`."""

    type: Literal["float"]
    low: FiniteFloat
    high: FiniteFloat
    step: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    @model_validator(mode="after")
    def _log_or_step(self) -> FloatParameter:
        if self.log and self.step is not None:
            raise ValueError("takes either `log: true` or a `step`")
        return self

    def like(self, value: Scalar) -> Scalar:
        """Returns a contained `value` as this parameter writes it."""
        return float(value)  # type: ignore[arg-type]


def _list(value: Any) -> Any:
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_CHOICES:
        raise ValueError(f"must be a list of 1 to {MAX_CHOICES} values")
    return tuple(value)


def _check_unique(choices: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    if len(set(choices)) < len(choices):
        raise ValueError("must not hold a value twice (1, 1.0 and true count as one)")
    return choices


class CategoricalParameter(SparseSection):
    """One of several values, in no order."""

    type: Literal["categorical"]
    choices: Annotated[tuple[AnyScalar, ...], BeforeValidator(_list), AfterValidator(_check_unique)]
    when: dict[str, Condition] = Field(default_factory=dict)

    def contains(self, value: Scalar) -> bool:
        """Returns whether the parameter can take `value`."""
        return any(is_same(choice, value) for choice in self.choices)

    def size(self) -> int:
        """Returns the number of choices."""
        return len(self.choices)

    def may_meet(self, condition: Condition) -> bool:
        """Returns whether some value of the parameter meets `condition`."""
        return any(holds(condition, choice) for choice in self.choices)

    def like(self, value: Scalar) -> Scalar:
        """Returns a contained `value` as this parameter writes it."""
        return next(choice for choice in self.choices if is_same(choice, value))

    def first_value(self) -> Scalar:
        """Returns some value of the parameter, always the same."""
        return self.choices[0]


Parameter = Annotated[IntParameter | FloatParameter | CategoricalParameter, Field(discriminator="type")]
"""A parameter of the space, of the kind that its `type` names."""


def simplify(
    space: Mapping[str, Parameter], fix: Mapping[str, Scalar]
) -> tuple[dict[str, Parameter], dict[str, Scalar]]:
    """Returns a restricted space and its `fix`, simplified.

    Parameters with one value left move into `fix`. Conditions that always hold are dropped, and so
    are parameters whose condition can never hold. A parameter with a condition and a single value stays,
    since it still has two states.
    """
    space, fix = dict(space), dict(fix)
    while True:
        decided = {n: p.first_value() for n, p in space.items() if p.size() == 1 and not p.when}
        fix |= decided
        kept: dict[str, Parameter] = {}
        for name, parameter in space.items():
            when = {t: _narrow(c, space.get(t)) for t, c in parameter.when.items() if t not in fix}
            alive = all(t in space and space[t].may_meet(c) for t, c in when.items()) and all(
                holds(c, fix[t]) for t, c in parameter.when.items() if t in fix
            )
            if alive and name not in decided:
                kept[name] = parameter.model_copy(update={"when": when})
        if kept == space:
            return space, fix
        space = kept


def _narrow(condition: Condition, target: Parameter | None) -> Condition:
    """Returns a list condition without the values that its target can no longer take."""
    if isinstance(condition, tuple) and target is not None:
        return tuple(value for value in condition if target.contains(value))
    return condition
