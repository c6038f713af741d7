"""Loads a specification from a file and overrides, and reports all mistakes in one error."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeper.spec.mistakes import SpecError
from sweeper.spec.overrides import override
from sweeper.spec.reader import Document, Place, read_file
from sweeper.spec.spelling import keep_spelling
from sweeper.spec.sweep_spec import SweepSpec
from sweeper.system.environment import secrets


def load(source: Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> SweepSpec:
    """Returns a specification with each `key=value` of `overrides` applied.

    The user's code is not imported.

    Args:
        source: A YAML or JSON file, or its content.

    Raises:
        UserError: One line `file:line:column: rule, but got value. remedy` for each mistake; for a
            mapping, `the specification: rule, ...`.
    """
    document = read_file(source) if isinstance(source, Path) else _document(source)
    if isinstance(document.value, dict):
        for item in overrides:
            override(document, item)
        keep_spelling(document)
    try:
        spec = SweepSpec.from_dict(document.value, secrets(os.environ))
    except SpecError as error:
        raise document.error(error.mistakes) from error
    if document.mistakes:
        raise document.error()
    return spec


def _document(value: Mapping[str, Any]) -> Document:
    here = Place(0, 0, "the specification")
    return Document(here.origin, _plain(value), {(): (here, here)})


def _plain(value: Any) -> Any:
    """Returns a copy of a tree in the types that a file has: rules look at lists, not at tuples."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return copy.deepcopy(value)


def read_yaml(path: Path, overrides: Sequence[str] = (), *, times: int = 1) -> Any:
    """Returns the plain value in a YAML or JSON file, by the same rules, with overrides applied.

    Args:
        times: Factor for the size limits, since files that sweeper writes may be longer.

    Raises:
        UserError: The file cannot be read, or an override breaks a rule.
    """
    document = read_file(path, times)
    if isinstance(document.value, dict):
        for item in overrides:
            override(document, item)
    if document.mistakes:
        raise document.error()
    return document.value
