"""Reads YAML and JSON into plain values with their places, by the YAML 1.2 core schema, strictly."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, NamedTuple

import yaml

from sweeper.core.config import Scalar
from sweeper.errors import UserError
from sweeper.schema.mistakes import Mistake, Path, dotted_name, is_within, show
from sweeper.schema.scalars import plain_scalar, plain_scalar_or_text

MAX_BYTES = 256 * 1024
MAX_DEPTH = 32
MAX_NODES = 20_000
MAX_SCALAR = 8 * 1024
OWN = 16
"""Factor for the size limits of sweeper's own files, which hold a specification several times."""
MAX_LINES = 100
"""Largest number of mistakes printed for one file."""
MAX_LINE = 1000
"""Largest number of characters printed for one mistake, since a key may be long."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_NOT_TEXT = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NOT_VALUE = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


class TextPlace(NamedTuple):
    """The place of a key or a value; at line 0 it is only an `origin`, such as a command-line option."""

    line: int
    column: int
    origin: str

    def __str__(self) -> str:
        """Returns `file:line:column`."""
        return f"{self.origin}:{self.line}:{self.column}" if self.line else self.origin


@dataclass(slots=True)
class Document:
    """A document as read.

    Attributes:
        value: The content as dicts with string keys, lists and scalars.
        places: The places of each path's key and value.
        truths: How each truth value is spelled, such as `True`.
        mistakes: Rules broken by single nodes, whose values must not be used, with their places.
    """

    origin: str
    value: Any = None
    places: dict[Path, tuple[TextPlace, TextPlace]] = field(default_factory=dict)
    truths: dict[Path, str] = field(default_factory=dict)
    mistakes: list[tuple[TextPlace, Mistake]] = field(default_factory=list)

    def place(self, mistake: Mistake) -> TextPlace:
        """Returns the place of `mistake`, or of the nearest parent that was written."""
        for end in range(len(mistake.path), -1, -1):
            if mistake.path[:end] in self.places:
                whole = end == len(mistake.path)
                return self.places[mistake.path[:end]][0 if mistake.at_key or not whole else 1]
        return TextPlace(1, 1, self.origin)

    def note(self, place: TextPlace, path: Path, text: str) -> None:
        """Notes a broken rule at `place`."""
        self.mistakes.append((place, Mistake(path, text)))

    def error(self, mistakes: Iterable[Mistake] = ()) -> UserError:
        """Returns one error with a line for each mistake, including noted ones, in the order of the file.

        A noted mistake hides those of `mistakes` at and below its path.
        """
        noted = {mistake.path for _, mistake in self.mistakes}
        texts = [(place, mistake.text) for place, mistake in self.mistakes]
        texts += [(self.place(item), item.text) for item in mistakes if not is_within(item.path, noted)]
        lines = [f"{place}: {_shorten(text)}" for place, text in sorted(texts)]
        if len(lines) > MAX_LINES:
            lines[MAX_LINES:] = [f"... and {len(lines) - MAX_LINES} more."]
        return UserError("\n".join(lines))


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_LINE else text[: MAX_LINE - 3] + "..."


class _UnreadableError(Exception):
    """Raised at a place after which nothing can be read."""

    def __init__(self, line: int, column: int, text: str) -> None:
        super().__init__(text)
        self.line, self.column, self.text = line, column, text


def read_file(path: FilePath, times: int = 1) -> Document:
    """Returns the document in the regular file `path`.

    Args:
        times: Factor for the size limits, since files that sweeper writes may be longer.

    Raises:
        UserError: The file does not exist, is too large, or is not text or not YAML.
    """
    max_bytes = times * MAX_BYTES
    try:
        with open(path, "rb", opener=open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise UserError(f"{path}: must be a regular file, but got something else.")
            raw = file.read(max_bytes + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from error
    size = max(status.st_size, len(raw))
    if size > max_bytes:
        raise UserError(f"{path}:1:1: must be at most {max_bytes} bytes, but got {size}.")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        line, column = _position(raw[: error.start].decode(), error.start)
        raise UserError(
            f"{path}:{line}:{column}: must be UTF-8, but got byte 0x{raw[error.start]:02x}."
            " Save the file as UTF-8."
        ) from error
    return read_text(text, str(path), times)


def read_text(text: str, origin: str, times: int = 1) -> Document:
    """Returns the one document in `text`.

    Args:
        origin: Name of the document in messages.
        times: Factor for the limits on values and their length, as for a file.

    Raises:
        UserError: The text cannot be read as one YAML document within the limits.
    """
    document = Document(origin)
    try:
        _check_text(text)
        _build(document, yaml.parse(text, Loader=_LOADER), times)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        rows = text.splitlines()
        row = show(rows[line - 1]) if line <= len(rows) else "the end of the text"
        _stop(document, line, column, f"must be YAML, but got {row} ({error.problem}).", error)
    except _UnreadableError as error:
        _stop(document, error.line, error.column, error.text, error)
    return document


def _stop(document: Document, line: int, column: int, text: str, cause: Exception) -> None:
    document.note(TextPlace(line, column, document.origin), (), text)
    raise document.error() from cause


def open_at_once(path: str, flags: int) -> int:
    """Opens a path without waiting for the other end if it is a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def _position(text: str, offset: int) -> tuple[int, int]:
    before = text[:offset]
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def _check_text(text: str) -> None:
    if text.startswith("\ufeff"):
        raise _UnreadableError(
            1, 1, "must be UTF-8 without a byte-order mark, but got one. Save the file without it."
        )
    if match := _NOT_TEXT.search(text):
        line, column = _position(text, match.start())
        raise _UnreadableError(
            line, column, f"must be text, but got the character {match[0]!r}. Save the file as UTF-8."
        )


@dataclass(slots=True)
class _OpenCollection:
    """A collection whose end has not been read yet; `key` waits for its value."""

    value: Any
    path: Path
    key: str | None = None
    key_place: TextPlace | None = None


def _build(document: Document, events: Iterable[yaml.Event], times: int) -> None:
    """Fills `document` from parser events, without recursion."""
    max_nodes, max_scalar = times * MAX_NODES, times * MAX_SCALAR
    stack: list[_OpenCollection] = []
    num_nodes = num_documents = 0
    for event in events:
        assert event.start_mark is not None
        place = TextPlace(event.start_mark.line + 1, event.start_mark.column + 1, document.origin)
        if isinstance(event, yaml.DocumentStartEvent):
            num_documents += 1
            if num_documents > 1:
                raise _UnreadableError(
                    place.line, place.column, "must be one document, but got a second `---`."
                )
        if isinstance(event, yaml.CollectionEndEvent):
            stack.pop()
        if not isinstance(event, yaml.NodeEvent):
            continue
        num_nodes += 1
        if num_nodes > max_nodes:
            raise _UnreadableError(
                place.line, place.column, f"must have at most {max_nodes} values, but got more."
            )
        parent = stack[-1] if stack else None
        if parent and isinstance(parent.value, dict) and parent.key is None:
            _take_key(document, parent, event, place)
            continue
        path = _path_of_next(parent)
        value = _value(document, event, path, place, max_scalar)
        document.places[path] = ((parent and parent.key_place) or place, place)
        if parent is None:
            document.value = value
        elif isinstance(parent.value, dict):
            parent.value[parent.key] = value
            parent.key = parent.key_place = None
        else:
            parent.value.append(value)
        if isinstance(event, yaml.CollectionStartEvent):
            stack.append(_OpenCollection(value, path))
            if len(stack) > MAX_DEPTH:
                raise _UnreadableError(
                    place.line, place.column, f"must have at most {MAX_DEPTH} levels, but got more."
                )


def _path_of_next(parent: _OpenCollection | None) -> Path:
    if parent is None:
        return ()
    return (*parent.path, parent.key if parent.key is not None else len(parent.value))


def _take_key(document: Document, parent: _OpenCollection, event: yaml.NodeEvent, place: TextPlace) -> None:
    if not isinstance(event, yaml.ScalarEvent):
        raise _UnreadableError(place.line, place.column, "A key must be a string, but got something else.")
    key = event.value
    path = (*parent.path, key)
    rule = ""
    if not key or not key.isprintable() or len(key) > MAX_SCALAR:
        raise _UnreadableError(place.line, place.column, f"A key must be a word, but got {show(key)}.")
    if event.anchor or event.tag:
        rule = f"Anchors and tags are not supported, but got one at `{key}`. Write the key plainly."
    elif key == "<<" and not event.style:
        rule = "Merge keys are not supported, but got `<<`. Write the values out."
    elif not event.style and not isinstance(plain_scalar_or_text(key), str):
        rule = f"A key must be a string, but got {key}. Put it in quotes."
    elif key in parent.value:
        first = document.places[path][0]
        rule = f"`{dotted_name(path)}` must be given once, but it is also on line {first.line}. Remove one."
    if rule:
        document.note(place, path, rule)
    parent.key, parent.key_place = key, place


def _value(document: Document, event: yaml.NodeEvent, path: Path, place: TextPlace, max_scalar: int) -> Any:
    """Returns the value of a node, an empty one for a collection; notes broken rules."""
    name = f"`{dotted_name(path)}`" if path else "The value"
    rule = ""
    value: Any = None
    if isinstance(event, yaml.AliasEvent) or event.anchor:
        rule = f"Anchors and aliases are not supported, but got one at {name}. Write the value out."
    elif isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag:
        rule = f"Tags are not supported, but got {show(event.tag)} at {name}. Remove the tag."
    elif isinstance(event, yaml.ScalarEvent):
        try:
            value = _scalar(event, max_scalar)
        except ValueError as error:
            rule = f"{name} {error}"
        if isinstance(value, bool):
            document.truths[path] = event.value
    if isinstance(event, yaml.CollectionStartEvent):
        value = {} if isinstance(event, yaml.MappingStartEvent) else []
    if rule:
        document.note(place, path, rule)
    return value


def _scalar(event: yaml.ScalarEvent, max_scalar: int) -> Scalar:
    text: str = event.value
    if len(text) > max_scalar:
        raise ValueError(f"must have at most {max_scalar} characters, but got {len(text)}.")
    if match := _NOT_VALUE.search(text):
        raise ValueError(f"must be text, but got the character {match[0]!r}.")
    return text if event.style else plain_scalar(text)
