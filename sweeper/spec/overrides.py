"""Applies `key=value` overrides from the command line to a document."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from sweeper.core.config import FIELDS
from sweeper.errors import UserError
from sweeper.spec.mistakes import Path, dotted, show
from sweeper.spec.reader import Document, Place, read_text
from sweeper.spec.space import CategoricalParameter, FloatParameter
from sweeper.system.environment import secrets
from sweeper.system.secrets import struck

MAX_LABEL = 200

_WHOLE_KEY = ("data", "fix", "baseline", "also_try", "when")
"""Sections below which the rest of a dotted name is one key."""

_PARAMETER_KEYS = {*FloatParameter.model_fields, *CategoricalParameter.model_fields}


def override(document: Document, item: str) -> None:
    """Applies `item` (`key=value`) to the document, and notes any mistake there.

    The longest existing key wins, since names in a specification may contain dots.
    """
    said = struck(item, secrets(os.environ))
    label = f"--set {said if said.isprintable() and len(said) <= MAX_LABEL else show(said)}"
    key, equals, text = item.partition("=")
    place = Place(0, 0, label)
    path: Path = ("--set", item)
    truths: Mapping[Path, str] = {}
    try:
        if not equals or not key:
            raise UserError(f"An override must be written `key=value`, but got {show(item)}.")
        given = _value(text)
        path, truths = _set(document.value, key, given.value), given.truths
    except UserError as error:
        document.note(place, path, str(error))
    document.places = {old: at for old, at in document.places.items() if old[: len(path)] != path}
    document.truths = {old: word for old, word in document.truths.items() if old[: len(path)] != path}
    document.truths |= {(*path, *below): word for below, word in truths.items()}
    for end in range(1, len(path) + 1):
        document.places.setdefault(path[:end], (place, place))


def _value(text: str) -> Document:
    try:
        read = read_text(text, "")
    except UserError as error:
        raise UserError(f"The value {str(error).partition(': ')[2]}") from error
    if read.mistakes:
        raise UserError(read.mistakes[0][1].text)
    return read


def _set(tree: Any, key: str, value: Any) -> Path:
    """Sets the value and returns its path; creates missing sections on the way."""
    node, parts = tree, key.split(".")
    path: Path = ()
    while True:
        width = 1
        step: int | str
        if isinstance(node, list):
            step = _index(node, parts[0], path)
        elif isinstance(node, dict):
            width = _width(node, path, parts)
            step = ".".join(parts[:width])
        else:
            raise UserError(f"`{dotted(path)}` has no keys, but got `{'.'.join(parts)}` below it.")
        path, parts = (*path, step), parts[width:]
        if not parts:
            node[step] = value
            return path
        if isinstance(node, dict) and node.get(step) is None:
            node[step] = {}
        node = node[step]


def _index(node: Sequence[Any], part: str, path: Path) -> int:
    if not part.isdecimal() or int(part) >= len(node):
        raise UserError(f"`{dotted(path)}` has items 0 to {len(node) - 1}, but got `{part}`.")
    return int(part)


def _width(node: dict[str, Any], path: Path, parts: Sequence[str]) -> int:
    """Returns the number of dotted parts that make up the next key."""
    lengths = range(len(parts), 0, -1)
    for known in (node, FIELDS if path == ("space",) else {}):
        for length in lengths:
            if ".".join(parts[:length]) in known:
                return length
    if path == ("space",):
        return len(parts) - (len(parts) > 1 and parts[-1] in _PARAMETER_KEYS)
    return len(parts) if path and (path[0] in _WHOLE_KEY[:4] or path[-1] == "when") else 1
