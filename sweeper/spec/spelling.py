"""Keeps how a file spells truth values: a script's command gets `True` where the file has `True`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sweeper.core.config import Scalar
from sweeper.core.template import respelled, shown
from sweeper.spec.mistakes import Path
from sweeper.spec.reader import Document

_WORD = re.compile(r"[\w.,:/+=-]+")
"""A value that a case of a template can name."""


def keep_spelling(document: Document) -> None:
    """Writes the document's spelling into its command: `{amp}` becomes `{amp: true -> True; false -> False}`.

    The values themselves stay truth values. The spelling in the space counts first. Nothing changes for a
    name with a value that a case cannot name, such as one with a space.
    """
    tree = document.value
    words: dict[str, dict[str, str]] = {}
    for name, path, value in _values(tree):
        text = shown(value)
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
                node[key] = respelled(text, words)


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
