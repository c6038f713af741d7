"""Defines the result of a sweep: the reason why it ended, and the findings of its confirmation.

result.json, and interim_result.json for a sweep that was stopped, hold both at one level.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sweeper.core.codec import decode, encode
from sweeper.results.numbers.confirmation import Ratio
from sweeper.results.numbers.time_to_loss import TimeToLoss


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmationResult:
    """The findings of a confirmation's rounds.

    Attributes:
        winner: Number of the winner; None if nothing is faster than the baseline.
        ties: Other candidates that cannot be distinguished from the fastest.
        infeasible: Candidates whose loss over the baseline's seeds is beyond its limit.
        ratios: Each candidate's ratio to the baseline, best first.
        race_end: Why no further round was run; empty if there was no race.
        disturbances: Number of disturbed rounds by trial number.
        time_to_loss: Comparison of the times to the baseline's loss; None if they were not measured.
        unreached_loss: The baseline's loss, if the winner did not reach it within three times its samples.
        is_provisional: Whether the ratios are of the processes by which the winner was found, and no others.
    """

    winner: int | None
    ties: tuple[int, ...] = ()
    infeasible: tuple[int, ...] = ()
    ratios: tuple[Ratio, ...] = ()
    race_end: str = ""
    disturbances: Mapping[int, int] = field(default_factory=dict)
    time_to_loss: TimeToLoss | None = None
    unreached_loss: float | None = None
    is_provisional: bool = False


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
