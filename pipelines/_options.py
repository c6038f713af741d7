"""Reads a pipeline's own keys (`data.*`, `model.*`) against its table of defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweeper import UserError
from sweeper.errors import did_you_mean


def options(
    section: str,
    given: Mapping[str, Any],
    defaults: Mapping[str, Any],
    least: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Returns `defaults` with the values in `given` put over them.

    Args:
        section: `data` or `model`; named in messages.
        given: The user's keys; None means the default.
        defaults: Every known key; the type of its default is the type asked for.
        least: The smallest number a key may have, where that is not 0.

    Raises:
        UserError: A key is unknown, has the wrong type, or is a number that is too small.
    """
    merged = dict(defaults)
    for key, value in given.items():
        name = f"{section}.{key}"
        if key not in defaults:
            hint = did_you_mean(key, defaults) or f" Known here: {', '.join(defaults)}."
            raise UserError(f"`{name}` is not an option of this pipeline.{hint}")
        if value is None:
            continue
        kind = type(defaults[key])
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise UserError(f"`{name}` must be of type {kind.__name__}, but got {value!r}.")
        smallest = (least or {}).get(key, 0)
        if kind is not str and value < smallest:
            raise UserError(f"`{name} >= {smallest}` must hold, but got {value!r}.")
        merged[key] = value
    return merged


def trial_data(
    given: Mapping[str, Any],
    made_with: Mapping[str, Any],
    free: str = "",
    least: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Returns a trial's options of the data, over those that it was prepared with.

    Args:
        given: The trial's `data.*`.
        free: The one that a trial may choose; the others are fixed.

    Raises:
        UserError: As `options`, or one that is fixed differs.
    """
    data = options("data", given, made_with, least)
    for key, value in made_with.items():
        if data[key] != value and key != free:
            raise UserError(
                f"`data.{key}` is fixed when the data is prepared ({value!r}), but a trial asks for "
                f"{data[key]!r}; set it for the whole sweep."
                + f" A trial may choose `data.{free}`."
                * bool(free)
            )
    return data


def choice(name: str, value: str, known: tuple[str, ...]) -> str:
    """Returns `value` if it is one of `known`.

    Raises:
        UserError: It is not.
    """
    if value not in known:
        raise UserError(
            f"`{name}` must be one of {', '.join(known)}, but got {value!r}.{did_you_mean(value, known)}"
        )
    return value
