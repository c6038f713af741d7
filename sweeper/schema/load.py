"""Loads a specification from a file and overrides, and reports all mistakes in one error."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeper.core.modules import check_pipeline
from sweeper.errors import UserError
from sweeper.schema.mistakes import Mistake, SpecError, first_per_place
from sweeper.schema.overrides import keep_spelling, override
from sweeper.schema.reader import Document, TextPlace, read_file
from sweeper.schema.sweep_spec import SweepSpec
from sweeper.system.environment import secrets


def load(source: Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> SweepSpec:
    """Returns a specification with each `key=value` of `overrides` applied.

    The pipeline is not imported; other parts of the user's own are.

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
    mistakes = list(_no_pipeline(document.value))
    try:
        spec = SweepSpec.from_dict(document.value, secrets(os.environ))
    except SpecError as error:
        raise document.error(first_per_place([*error.mistakes, *mistakes])) from error
    if mistakes or document.mistakes:
        raise document.error(mistakes)
    return spec


def _no_pipeline(tree: Any) -> Iterator[Mistake]:
    """Yields a mistake if `pipeline` cannot be one, judging by its source."""
    name = tree.get("pipeline") if isinstance(tree, Mapping) else None
    if isinstance(name, str) and name:
        try:
            check_pipeline(name)
        except UserError as error:
            yield Mistake(("pipeline",), str(error))


def _document(value: Mapping[str, Any]) -> Document:
    here = TextPlace(0, 0, "the specification")
    return Document(here.origin, _plain_copy(value), {(): (here, here)})


def _plain_copy(value: Any) -> Any:
    """Returns a copy of a tree in the types that a file has: rules look at lists, not at tuples."""
    if isinstance(value, Mapping):
        return {key: _plain_copy(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_copy(item) for item in value]
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
