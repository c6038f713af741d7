"""Removes secrets from text: known values, passwords in URLs, strings shaped like keys."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

STRUCK = "***"

_USERINFO = re.compile(r"(://[^/?#\s@:\"']*):[^/?#\s@\"']+@")
_SHAPES: Mapping[str, re.Pattern[str]] = {
    "a URL with a password": _USERINFO,
    "a password in a URL": re.compile(r"(?<=[?&])(?:ssl)?pass(?:word|wd)=[^&\s\"'{}]+"),
    "an AWS access key": re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    "a GitHub token": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})"),
    "a Hugging Face token": re.compile(r"\bhf_[A-Za-z0-9]{20,}"),
    "an API key": re.compile(r"(?<![\w-])sk-[\w-]{0,200}?[A-Za-z0-9]{20,}[\w-]*", re.ASCII),
    "a private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?-----END [A-Z ]*-----)?"),
    "a JSON web token": re.compile(r"(?<![\w-])eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}", re.ASCII),
}
_URL_BYTES = re.compile(_USERINFO.pattern.encode())
_URL_BEGUN = re.compile(rb"(?::/?|://[^/?#\s@\"']{0,300})\Z")


def kind_of(text: str) -> str:
    """Returns the kind of secret a text holds, such as `a GitHub token`, by its shape; empty if none."""
    return next((kind for kind, shape in _SHAPES.items() if shape.search(text)), "")


def strike(text: str, secrets: Collection[str] = ()) -> str:
    """Returns `text` with secrets, and anything shaped like one, masked; a URL keeps its user."""
    for value in sorted(secrets, key=len, reverse=True):
        text = text.replace(value, STRUCK)
    for shape in _SHAPES.values():
        text = shape.sub(rf"\1:{STRUCK}@" if shape is _USERINFO else STRUCK, text)
    return text


def strike_tree(tree: Any, secrets: Collection[str] = ()) -> Any:
    """Returns a JSON value with secrets masked in every string; keys stay as they are."""
    if isinstance(tree, str):
        return strike(tree, secrets)
    if isinstance(tree, Mapping):
        return {key: strike_tree(value, secrets) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [strike_tree(value, secrets) for value in tree]
    return tree


class Striker:
    """Masks values and passwords in URLs in a stream of bytes, wherever its chunks are cut."""

    def __init__(self, secrets: Iterable[str]) -> None:
        # Longest first: one may be the beginning of another.
        encoded = {value.encode("utf-8", "surrogateescape") for value in secrets if value}
        self._values = sorted(encoded, key=len, reverse=True)
        self._rule = re.compile(b"|".join(map(re.escape, self._values)))
        self._held = b""

    def take(self, data: bytes) -> bytes:
        """Returns what is safe to show so far; holds back what may begin a secret."""
        data = self._held + data
        end = self._safe_end(data)
        self._held = data[end:]
        return self._clean(data[:end])

    def rest(self) -> bytes:
        """Returns what was held back, at the end of the stream."""
        held, self._held = self._held, b""
        return self._clean(held)

    def _safe_end(self, data: bytes) -> int:
        begun = [self._find_begin(data, value) for value in self._values]
        if url := _URL_BEGUN.search(data, max(0, len(data) - 303)):
            begun.append(url.start())
        end = min(begun, default=len(data))
        if end < len(data) and any(value in data for value in self._values):
            # A whole secret whose last bytes may begin another one is held back with it.
            for match in self._rule.finditer(data):
                if match.start() < end < match.end():
                    return match.start()
        return end

    @staticmethod
    def _find_begin(data: bytes, value: bytes) -> int:
        """Returns where, at the end of `data`, an unfinished `value` begins."""
        start = max(0, len(data) - len(value) + 1)
        while (start := data.find(value[:1], start)) >= 0:
            if value.startswith(data[start:]):
                return start
            start += 1
        return len(data)

    def _clean(self, data: bytes) -> bytes:
        if any(value in data for value in self._values):
            data = self._rule.sub(STRUCK.encode(), data)
        return _URL_BYTES.sub(rb"\1:***@", data) if b"://" in data and b"@" in data else data
