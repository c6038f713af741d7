"""The wire format: frozen dataclasses to JSON values and back, by their own annotations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class DecodeError(ValueError):
    """A stored value does not fit the type that reads it; the message names its path."""


_PLAIN = frozenset((str, int, bool, NoneType))
_STORED_AS = "stored as"


def stored_as(name: str, **options: Any) -> Any:
    """Returns a dataclass field that files know by another name, so that what stands on disk stays readable.

    Args:
        name: The key in a file.
        **options: As of `dataclasses.field`.
    """
    return dataclasses.field(**options, metadata={_STORED_AS: name})


_keys: Callable[[Any], tuple[tuple[str, str], ...]] = cache(
    lambda kind: tuple(
        (each.name, each.metadata.get(_STORED_AS, each.name)) for each in dataclasses.fields(kind)
    )
)
"""The fields of a dataclass, each with its key in a file."""


def encode(value: Any) -> Any:
    """Returns `value` as what `json.dumps(..., allow_nan=False)` takes; NaN and inf become None."""
    kind = type(value)
    if kind in _PLAIN:
        # Most are.
        return value
    if dataclasses.is_dataclass(kind):
        return {key: encode(getattr(value, name)) for name, key in _keys(kind)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): encode(val) for key, val in value.items()}
    if isinstance(value, list | tuple):
        return [encode(val) for val in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)
_parts: Callable[[Any], tuple[Any, tuple[Any, ...]]] = cache(lambda hint: (get_origin(hint), get_args(hint)))


def decode(kind: type[T], value: Any, path: str = "") -> T:
    """Returns `value` (from `json.loads`) as an instance of the dataclass `kind`.

    Unknown keys are passed over, so that an older reader takes a newer file.

    Raises:
        DecodeError: A required key is missing or a value has the wrong type.
    """
    if not isinstance(value, Mapping):
        raise DecodeError(f"`{path or kind.__name__}` must be an object, but got {value!r}.")
    hints = _hints(kind)
    given: dict[str, Any] = {}
    for name, key in _keys(kind):
        if key in value:
            given[name] = _decode(hints[name], value[key], f"{path}.{key}" if path else key)
    try:
        return kind(**given)
    except TypeError as error:
        raise DecodeError(f"`{path or kind.__name__}`: {error}") from error


def _decode(hint: Any, value: Any, path: str) -> Any:
    if type(value) is hint:
        # Most are.
        return value
    origin, args = _parts(hint)
    if hint is Any or hint is object:
        return value
    if origin in (Union, UnionType):
        if value is None and NoneType in args:
            return None
        for option in args:
            try:
                return _decode(option, value, path)
            except DecodeError:
                continue
        raise DecodeError(f"`{path}` does not take {value!r}.")
    if origin is Literal:
        if value in args:
            return value
        raise DecodeError(f"`{path}` must be one of {args}, but got {value!r}.")
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise DecodeError(f"`{path}` must be a list, but got {value!r}.")
        kinds = [args[0]] * len(value) if args[-1] is Ellipsis else list(args)
        if len(kinds) != len(value):
            raise DecodeError(f"`{path}` must be a list of {len(kinds)}, but got {value!r}.")
        pairs = enumerate(zip(kinds, value, strict=True))
        return tuple(_decode(kind, val, f"{path}[{i}]") for i, (kind, val) in pairs)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise DecodeError(f"`{path}` must be an object, but got {value!r}.")
        return {key: _decode(args[1], val, f"{path}.{key}") for key, val in value.items()}
    if dataclasses.is_dataclass(hint):
        return decode(hint, value, path)  # type: ignore[arg-type]
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(value)
        except ValueError as error:
            raise DecodeError(f"`{path}`: {error}") from error
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is float and value is None:
        return math.nan
    raise DecodeError(f"`{path}` must be {hint.__name__}, but got {value!r}.")
