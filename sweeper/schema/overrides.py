"""Applies `key=value` overrides from the command line to a document, and keeps how it spells truth values."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sweeper.core.config import FIELDS, Scalar
from sweeper.core.template import respell, spell
from sweeper.errors import UserError
from sweeper.schema.mistakes import Path, dotted_name, show
from sweeper.schema.reader import Document, TextPlace, read_text
from sweeper.schema.space import CategoricalParameter, FloatParameter
from sweeper.system.environment import secrets
from sweeper.system.secrets import strike

MAX_LABEL = 200

_WHOLE_KEY = ("data", "fix", "baseline", "also_try", "when")
"""Sections below which the rest of a dotted name is one key."""

_PARAMETER_KEYS = {*FloatParameter.model_fields, *CategoricalParameter.model_fields}

_WORD = re.compile(r"[\w.,:/+=-]+")
"""A value that a case of a template can name."""


def override(document: Document, item: str) -> None:
    """Applies `item` (`key=value`) to the document, and notes any mistake there.

    The longest existing key wins, since names in a specification may contain dots.
    """
    safe_item = strike(item, secrets(os.environ))
    label = (
        f"--set {safe_item if safe_item.isprintable() and len(safe_item) <= MAX_LABEL else show(safe_item)}"
    )
    key, equals, text = item.partition("=")
    place = TextPlace(0, 0, label)
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
            raise UserError(f"`{dotted_name(path)}` has no keys, but got `{'.'.join(parts)}` below it.")
        path, parts = (*path, step), parts[width:]
        if not parts:
            node[step] = value
            return path
        if isinstance(node, dict) and node.get(step) is None:
            node[step] = {}
        node = node[step]


def _index(node: Sequence[Any], part: str, path: Path) -> int:
    if not part.isdecimal() or int(part) >= len(node):
        raise UserError(f"`{dotted_name(path)}` has items 0 to {len(node) - 1}, but got `{part}`.")
    return int(part)


def _width(node: dict[str, Any], path: Path, parts: Sequence[str]) -> int:
    """Returns the number of dotted parts that make up the next key."""
    lengths = range(len(parts), 0, -1)
    for keys in (node, FIELDS if path == ("space",) else {}):
        for length in lengths:
            if ".".join(parts[:length]) in keys:
                return length
    if path == ("space",):
        return len(parts) - (len(parts) > 1 and parts[-1] in _PARAMETER_KEYS)
    return len(parts) if path and (path[0] in _WHOLE_KEY[:4] or path[-1] == "when") else 1


def keep_spelling(document: Document) -> None:
    """Writes the document's spelling into its command: `{amp}` becomes `{amp: true -> True; false -> False}`.

    The values themselves stay truth values. The spelling in the space counts first. Nothing changes for a
    name with a value that a case cannot name, such as one with a space.
    """
    tree = document.value
    words: dict[str, dict[str, str]] = {}
    for name, path, value in _values(tree):
        text = spell(value)
        words.setdefault(name, {}).setdefault(text, document.truths.get(path, text))
    words = {
        name: cases
        for name, cases in words.items()
        if any(text != word for text, word in cases.items()) and all(map(_WORD.fullmatch, cases))
    }
    templates = [tree["command"], _get(_get(tree, "script"), "env")] if words and "command" in tree else []
    for node in templates:
        for key, text in [*(enumerate(node) if isinstance(node, list) else _items(node))]:
            if isinstance(text, str):
                node[key] = respell(text, words)


def _values(tree: Mapping[str, Any]) -> Iterator[tuple[str, Path, Scalar]]:
    """Yields the single values of each parameter, with its name and their paths."""
    for name, parameter in _items(tree.get("space")):
        choices = _get(parameter, "choices")
        for index, choice in enumerate(choices if isinstance(choices, list) else ()):
            if isinstance(choice, Scalar):
                yield name, ("space", name, "choices", index), choice
    sections: list[tuple[Path, Any]] = [((key,), tree.get(key)) for key in ("fix", "baseline")]
    entries = tree.get("also_try")
    sections += [(("also_try", i), e) for i, e in enumerate(entries if isinstance(entries, list) else ())]
    for path, section in sections:
        for name, value in _items(section):
            if isinstance(value, Scalar):
                yield name, (*path, name), value


def _items(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else []


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None
