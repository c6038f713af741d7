"""Encodes frozen dataclasses to JSON values and decodes them by their annotations.

msgspec (0.23) would not do: it takes no null for a float, which is how NaN is stored, and its messages have
neither the wrong value nor the keys of mappings. It decodes an outcome in 9 us instead of 44, but takes 10 ms
to import, in each process that is measured; this takes 0.3 ms.
"""

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


_names: Callable[[Any], tuple[str, ...]] = cache(
    lambda kind: tuple(field.name for field in dataclasses.fields(kind))
)
"""The names of a dataclass's fields, which are the keys in a file."""


def encode(value: Any) -> Any:
    """Returns `value` in a form that `json.dumps(..., allow_nan=False)` accepts; NaN and inf become None."""
    kind = type(value)
    if kind in _PLAIN:
        # The common case.
        return value
    if dataclasses.is_dataclass(kind):
        return {name: encode(getattr(value, name)) for name in _names(kind)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): encode(val) for key, val in value.items()}
    if isinstance(value, list | tuple):
        return [encode(val) for val in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class _MisfitError(Exception):
    """A value does not fit. Each level adds its step to the path, and `decode` reports the whole path."""

    def __init__(self, says: Callable[[str], str]) -> None:
        super().__init__()
        self.says, self.steps = says, list[str]()


def decode(kind: type[T], value: Any, path: str = "") -> T:
    """Returns `value` (from `json.loads`) as an instance of the dataclass `kind`.

    Unknown keys are ignored, so that an older version reads a newer file.

    Raises:
        DecodeError: A required key is missing or a value has the wrong type.
    """
    try:
        decoded: T = _decoder(kind)(value)
    except _MisfitError as misfit:
        where = "".join([path, *reversed(misfit.steps)]).removeprefix(".")
        raise DecodeError(misfit.says(where or kind.__name__)) from misfit.__cause__
    return decoded


def _decoder_of(hint: Any) -> Callable[[Any], Any]:
    """Returns the decoder for values of the type `hint`."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any or hint is object:
        return lambda value: value
    if origin in (Union, UnionType):
        return _union_decoder(args)
    if origin is Literal:
        return _literal_decoder(args)
    if origin is tuple:
        return _tuple_decoder(args)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping_decoder(args)
    if dataclasses.is_dataclass(hint):
        return _dataclass_decoder(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum_decoder(hint)
    return _plain_decoder(hint)


_decoder: Callable[[Any], Callable[[Any], Any]] = cache(_decoder_of)
"""Returns the decoder of a type. Each is made only once, because a sweep has thousands of files."""


def make_decoders(*kinds: type) -> None:
    """Makes the decoders of types before they are needed: each takes about a millisecond."""
    for kind in kinds:
        _decoder(kind)


def _types_kept(hint: Any) -> frozenset[type]:
    """Returns the types whose values are valid for `hint` as they are; most values need no decoder."""
    if get_origin(hint) in (Union, UnionType):
        return _types_kept_by_any(get_args(hint))
    return frozenset((hint,)) if hint in (*_PLAIN, float) else frozenset()


def _types_kept_by_any(hints: tuple[Any, ...]) -> frozenset[type]:
    return frozenset[type]().union(*map(_types_kept, hints))


def _dataclass_decoder(kind: Any) -> Callable[[Any], Any]:
    hints = get_type_hints(kind)
    fields = [(name, _types_kept(hints[name]), _decoder(hints[name])) for name in _names(kind)]

    def decoder(value: Any) -> Any:
        if type(value) is not dict and not isinstance(value, Mapping):
            raise _MisfitError(lambda where: f"`{where}` must be an object, but got {value!r}.")
        given: dict[str, Any] = {}
        for name, kept, inner in fields:
            if name not in value:
                continue
            item = value[name]
            if type(item) not in kept:
                try:
                    item = inner(item)
                except _MisfitError as misfit:
                    misfit.steps.append(f".{name}")
                    raise
            given[name] = item
        try:
            return kind(**given)
        except TypeError as error:
            message = str(error)
            raise _MisfitError(lambda where: f"`{where}`: {message}") from error

    return decoder


def _union_decoder(args: tuple[Any, ...]) -> Callable[[Any], Any]:
    options = [_decoder(arg) for arg in args if arg is not NoneType]
    kept = _types_kept_by_any(args)

    def decoder(value: Any) -> Any:
        if type(value) in kept:
            return value
        for option in options:
            try:
                return option(value)
            except _MisfitError:
                continue
        raise _MisfitError(lambda where: f"`{where}` does not take {value!r}.")

    return decoder


def _literal_decoder(args: tuple[Any, ...]) -> Callable[[Any], Any]:
    def decoder(value: Any) -> Any:
        if value in args:
            return value
        raise _MisfitError(lambda where: f"`{where}` must be one of {args}, but got {value!r}.")

    return decoder


def _tuple_decoder(args: tuple[Any, ...]) -> Callable[[Any], Any]:
    inner = [(_types_kept(arg), _decoder(arg)) for arg in args if arg is not Ellipsis]

    def decoder(value: Any) -> Any:
        if type(value) is not list and not isinstance(value, tuple):
            raise _MisfitError(lambda where: f"`{where}` must be a list, but got {value!r}.")
        decoders = inner * len(value) if args[-1] is Ellipsis else inner
        if len(decoders) != len(value):
            raise _MisfitError(lambda where: f"`{where}` must be a list of {len(inner)}, but got {value!r}.")
        values: list[Any] = []
        try:
            for (kept, one), item in zip(decoders, value, strict=True):
                values.append(item if type(item) in kept else one(item))
        except _MisfitError as misfit:
            misfit.steps.append(f"[{len(values)}]")
            raise
        return tuple(values)

    return decoder


def _mapping_decoder(args: tuple[Any, ...]) -> Callable[[Any], Any]:
    if args[0] is int:
        return _numbered_decoder(_mapping_decoder((str, args[1])))
    kept, inner = _types_kept(args[1]), _decoder(args[1])

    def decoder(value: Any) -> Any:
        if type(value) is not dict and not isinstance(value, Mapping):
            raise _MisfitError(lambda where: f"`{where}` must be an object, but got {value!r}.")
        values, key = {}, None
        try:
            for key, item in value.items():
                values[key] = item if type(item) in kept else inner(item)
        except _MisfitError as misfit:
            misfit.steps.append(f".{key}")
            raise
        return values

    return decoder


def _numbered_decoder(inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns the decoder for a mapping with integer keys, which are text in a file."""

    def decoder(value: Any) -> Any:
        values = inner(value)
        try:
            return {int(key): item for key, item in values.items()}
        except ValueError as error:
            message = str(error)
            raise _MisfitError(lambda where: f"`{where}`: {message}") from error

    return decoder


def _enum_decoder(kind: type[Enum]) -> Callable[[Any], Any]:
    def decoder(value: Any) -> Any:
        try:
            return kind(value)
        except ValueError as error:
            message = str(error)
            raise _MisfitError(lambda where: f"`{where}`: {message}") from error

    return decoder


def _plain_decoder(kind: Any) -> Callable[[Any], Any]:
    def decoder(value: Any) -> Any:
        if type(value) is kind:
            return value
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if kind is float and value is None:
            return math.nan
        raise _MisfitError(lambda where: f"`{where}` must be {kind.__name__}, but got {value!r}.")

    return decoder
