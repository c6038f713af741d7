"""Collects broken rules, each with its path in the user's file, in one UserError."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from sweeper.errors import UserError, did_you_mean
from sweeper.system.environment import secrets
from sweeper.system.secrets import strike

Path = tuple[str | int, ...]
"""The keys and indices that lead to a value."""

_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Mistake:
    """A broken rule in one line. `at_key` points at the key itself instead of its value."""

    path: Path
    text: str
    at_key: bool = False


class SpecError(UserError):
    """All mistakes of one specification; the message has one line for each."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(mistake.text for mistake in self.mistakes))


def first_per_place(mistakes: Iterable[Mistake]) -> Iterator[Mistake]:
    """Yields the mistakes, except those at or below the place of an earlier one."""
    seen: set[Path] = set()
    for mistake in mistakes:
        if not is_within(mistake.path, seen):
            yield mistake
        seen.add(mistake.path)


def is_within(path: Path, places: Collection[Path]) -> bool:
    """Returns whether `path` is one of `places` or below one."""
    return any(path[:end] in places for end in range(1, len(path) + 1))


def dotted_name(path: Path) -> str:
    """Returns `path` as messages write it, such as `also_try[0].loader.kind`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).lstrip(".")


def show(value: object) -> str:
    """Returns `value` in one line of bounded length, with no secret in it."""
    text = strike(repr(value), secrets(os.environ))
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def from_pydantic(
    error: ValidationError, tree: Any, models: Mapping[str, type[BaseModel]]
) -> Iterator[Mistake]:
    """Yields pydantic's findings about `tree` as mistakes worded like sweeper's own.

    Args:
        error: The error that `model_validate(tree)` raised.
        tree: The plain value that was validated.
        models: The model of each section, for suggesting keys; `""` is the whole specification.
    """
    for item in error.errors(include_url=False):
        loc, value = item["loc"], item["input"]
        path = _path(tree, loc)
        if item["type"] == "extra_forbidden":
            fields = _model(models, loc).model_fields
            remedy = did_you_mean(str(loc[-1]), fields) or f" Known keys: {', '.join(fields)}."
            yield Mistake(path, f"`{dotted_name(path)}` is not a known key.{remedy}", at_key=True)
        elif item["type"] in ("missing", "union_tag_not_found"):
            path = (*path, loc[-1] if item["type"] == "missing" else "type")
            yield Mistake(path, f"`{dotted_name(path)}` is required, but it is missing.", at_key=True)
        elif item["type"] == "union_tag_invalid":
            tags = _quoted_words(item["ctx"]["expected_tags"])
            tag = item["ctx"]["tag"]
            path = (*path, "type")
            remedy = did_you_mean(tag, tags)
            yield Mistake(
                path, f"`{dotted_name(path)}` must be one of {', '.join(tags)}, but got {show(tag)}.{remedy}"
            )
        else:
            rule = item["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
            if item["type"] in ("dict_type", "model_type", "model_attributes_type"):
                rule = "must be a mapping of keys to values"
            if isinstance(value, Mapping) and len(repr(value)) > _SHOWN:
                # A long section is cut down to the keys that the rule names.
                value = {key: entry for key, entry in value.items() if f"`{key}" in rule} or value
            remedy = (
                did_you_mean(str(value), _quoted_words(item.get("ctx", {}).get("expected")))
                if isinstance(value, str)
                else ""
            )
            yield Mistake(path, f"`{dotted_name(path)}` {rule}, but got {show(value)}.{remedy}")


def _quoted_words(text: object) -> list[str]:
    """Returns the words in single quotes, which are the values that pydantic would accept."""
    return str(text).split("'")[1::2]


def _path(tree: Any, loc: Sequence[str | int]) -> Path:
    """Returns the part of a pydantic location that is in the file, without union tags and the like."""
    path: Path = ()
    for key in loc:
        if (isinstance(tree, Mapping) and key in tree) or (
            isinstance(tree, list | tuple) and isinstance(key, int)
        ):
            tree = tree[key]  # type: ignore[index]
            path = (*path, key)
    return path


def _model(models: Mapping[str, type[BaseModel]], loc: Sequence[str | int]) -> type[BaseModel]:
    """Returns the model that rejected the last key of `loc`."""
    if len(loc) == 1:
        return models[""]
    if loc[0] == "space":
        return models["when" if "when" in loc[3:-1] else str(loc[2])]
    inner = str(loc[-2])
    return models[inner if inner in models else str(loc[0])]
