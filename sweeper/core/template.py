"""Renders templates of command lines and files: `{name}` is a value, `{name: value -> text}` optional text.

    "--batch-size={batch_size}"              the value in the text
    "{precision.amp: bf16 -> --amp}"         an argument for one value only
    "{amp: bf16 -> --amp --dtype bf16; fp16 -> --amp --dtype fp16}"      several; words are arguments
    "{{name}}"                               the text {name}; a condition is escaped in the same way

All other braces are plain text, so JSON needs no escaping.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from sweeper.core.config import Scalar
from sweeper.errors import UserError

_NAME = r"[A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*)*"
_CASES = r"[^{}]*->[^{}]*"
_FIELD = re.compile(rf"\{{\{{({_NAME}(?:\s*:{_CASES})?)\}}\}}|\{{({_NAME})(?:\s*:({_CASES}))?\}}")
_CASE = re.compile(r"(.*?)\s*->\s*(.*)", re.DOTALL)


def names_in(text: str) -> Iterator[str]:
    """Yields the names that a template mentions."""
    return (field[2] for field in _FIELD.finditer(text) if field[2])


def render(text: str, values: Mapping[str, Scalar]) -> str:
    """Returns a template with its values in place.

    Raises:
        UserError: A name has no value.
    """
    return _FIELD.sub(lambda field: _fill_in(field, values), text)


def literal(text: str) -> str:
    """Returns a template that renders as this text, without filling in names in braces."""
    return _FIELD.sub(lambda field: f"{{{field[0]}}}", text)


def cases(name: str, words: Mapping[str, str]) -> str:
    """Returns the template in which the values of a name, as `spell`, become words."""
    return f"{{{name}: {'; '.join(f'{value} -> {word}' for value, word in words.items())}}}"


def respell(text: str, words: Mapping[str, Mapping[str, str]]) -> str:
    """Returns a template in which the values of some names become words, except where it has cases."""
    return _FIELD.sub(
        lambda field: field[0] if field[3] or field[2] not in words else cases(field[2], words[field[2]]),
        text,
    )


def arguments(items: Sequence[str], values: Mapping[str, Scalar]) -> list[str]:
    """Returns a rendered command line; an item that is a condition becomes its words, or nothing.

    Raises:
        UserError: A name has no value.
    """
    words: list[str] = []
    for item in items:
        whole = _FIELD.fullmatch(item)
        if whole is not None and whole[3]:
            words += shlex.split(_fill_in(whole, values))
        else:
            words.append(render(item, values))
    return words


def spell(value: Scalar) -> str:
    """Returns a value as command lines, YAML, JSON and TOML write it: `true`, `null`, `0.0003`."""
    if isinstance(value, str):
        return value
    text = json.dumps(value)
    # 3e-05 is a string to PyYAML, 3.0e-05 a number to everybody.
    return text.replace("e", ".0e") if isinstance(value, float) and "." not in text else text


def _is_for(case: str, value: Scalar) -> bool:
    """Returns whether a case is for a value, which YAML may spell `true` or `True`."""
    return (case.lower() if isinstance(value, bool | None) else case) == spell(value)


def _fill_in(field: re.Match[str], values: Mapping[str, Scalar]) -> str:
    if field[1]:
        return f"{{{field[1]}}}"
    name = field[2]
    if name not in values:
        raise UserError(f"`{field[0]}` must name a parameter, but {name!r} has no value.")
    value = spell(values[name])
    if not field[3]:
        return value
    for case in field[3].split(";"):
        parted = _CASE.fullmatch(case.strip())
        if parted is not None and _is_for(parted[1].strip(), values[name]):
            return parted[2].strip()
    return ""
