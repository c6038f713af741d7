"""Resolves unquoted scalars by the core schema of YAML 1.2 (section 10.3.2); numbers must be finite."""

from __future__ import annotations

import re

from sweeper.core.config import Scalar
from sweeper.schema.mistakes import show

_NULL = re.compile(r"|~|null|Null|NULL")
_BOOL = re.compile(r"(true|True|TRUE)|false|False|FALSE")
INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


def plain_scalar_or_text(text: str) -> Scalar:
    """Returns the value of the unquoted `text`, or the text itself if its value is not allowed."""
    try:
        return plain_scalar(text)
    except ValueError:
        return text


def plain_scalar(text: str) -> Scalar:
    """Returns the value of the unquoted `text`.

    Raises:
        ValueError: It is a number that is not finite, or an integer of more than 64 bits.
    """
    if _NULL.fullmatch(text):
        return None
    if match := _BOOL.fullmatch(text):
        return bool(match[1])
    if INT.fullmatch(text):
        base = {"0o": 8, "0x": 16}.get(text[:2], 10)
        digits = text[2:] if base != 10 else text
        if len(digits.lstrip("+-0")) > 22 or not -(2**63) <= (number := int(digits, base)) < 2**63:
            raise ValueError(f"must fit in 64 bits, but got {show(text)}.")
        return number
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(f"must be a finite number, but got {text}.")
    if FLOAT.fullmatch(text):
        if abs(value := float(text)) == float("inf"):
            raise ValueError(f"must be a finite number, but got {show(text)}.")
        return value
    return text
