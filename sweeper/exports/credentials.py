"""Removes credentials from URLs, since exports are shared."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_USERINFO = re.compile(r"(?<![A-Za-z0-9+.-])([A-Za-z][A-Za-z0-9+.-]*://)[^/?#\s@]*:[^/?#\s]*@")


def without_credentials(tree: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Returns plain values with no `user:password@` in any URL, and a warning for each that had one."""
    found: list[str] = []
    stripped: dict[str, Any] = _stripped(tree, "", found)
    return stripped, [
        f"The credentials in the URL of `{path}` were removed. Supply them at run time." for path in found
    ]


def _stripped(value: Any, path: str, found: list[str]) -> Any:
    if isinstance(value, str):
        clean = _USERINFO.sub(r"\1", value)
        found += [path] if clean != value else []
        return clean
    if isinstance(value, Mapping):
        return {key: _stripped(each, below, found) for key, each, below in _below(value, path)}
    if isinstance(value, list | tuple):
        return [_stripped(each, f"{path}[{i}]", found) for i, each in enumerate(value)]
    return value


def _below(value: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any, str]]:
    for key, each in value.items():
        yield key, each, f"{path}.{key}" if path else str(key)
