"""Defines the result of a sweep: the reason why it ended, and the findings of its confirmation.

result.json, and interim_result.json for a sweep that was stopped, hold both at one level.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sweeper.core.codec import decode, encode
from sweeper.results.numbers.confirmation_result import ConfirmationResult


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """The result of a sweep, or the result so far of one that was stopped.

    Attributes:
        search_end: Why its search ended.
    """

    search_end: str
    confirmation: ConfirmationResult


def encode_result(result: SweepResult) -> dict[str, Any]:
    """Returns a result as JSON values, as its file holds them."""
    return {"search_end": result.search_end, **encode(result.confirmation)}


def decode_result(tree: Mapping[str, Any]) -> SweepResult:
    """Returns the result that `encode_result` wrote.

    Raises:
        ValueError: A required key is missing, or a value has the wrong type.
    """
    search_end = tree.get("search_end")
    if not isinstance(search_end, str):
        raise ValueError(f"`search_end` must be text, but got {search_end!r}")
    return SweepResult(search_end=search_end, confirmation=decode(ConfirmationResult, tree))
