"""Defines the result of a sweep: the reason why it ended, and the findings of its confirmation.

result.json, and stopped.json for a sweep that was stopped, hold both at one level.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sweeper.analysis.confirmation import Ratio
from sweeper.analysis.time_to_loss import TimeToLoss
from sweeper.core.codec import decode, encode


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmationResult:
    """The findings of a confirmation's rounds.

    Attributes:
        winner: Number of the winner; None if nothing is faster than the baseline.
        confirmed: False if `winner` is only the best trial of the search so far.
        tied: Other candidates that cannot be distinguished from the fastest.
        unfit: Candidates whose loss over the baseline's seeds is beyond its limit.
        ratios: Each candidate's ratio to the baseline, best first.
        rounds: Samples per second by trial number, for each round.
        early: The same for rounds during the search, each at another time.
        rounds_ended: Why no further round was run; empty if there were no rounds.
        disturbed: Number of disturbed rounds by trial number.
        to_loss: Comparison of the times to the baseline's loss; None if they were not measured.
        missed_loss: The baseline's loss, if the winner did not reach it within three times its samples.
    """

    winner: int | None
    confirmed: bool = False
    tied: tuple[int, ...] = ()
    unfit: tuple[int, ...] = ()
    ratios: tuple[Ratio, ...] = ()
    rounds: tuple[Mapping[int, float], ...] = ()
    early: tuple[Mapping[int, float], ...] = ()
    rounds_ended: str = ""
    disturbed: Mapping[int, int] = field(default_factory=dict)
    to_loss: TimeToLoss | None = None
    missed_loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """The result of a sweep, or the result so far of one that was stopped.

    Attributes:
        reason: Why its search ended.
    """

    reason: str
    confirmation: ConfirmationResult


def encode_confirmation(found: ConfirmationResult) -> dict[str, Any]:
    """Returns a confirmation as JSON values, as a result file holds them."""
    tree: dict[str, Any] = encode(found)
    # Files of earlier versions do not have these keys.
    if found.to_loss is None:
        del tree["to_loss"]
    if found.missed_loss is None:
        del tree["missed_loss"]
    if not found.early:
        del tree["early"]
    for ratio in tree["ratios"]:
        for name in ("now_low", "now_high", "speed_low", "speed_high"):
            if ratio[name] is None:
                del ratio[name]
    if not found.rounds_ended:
        # Files without rounds have never had these keys.
        for name in ("tied", "unfit", "rounds_ended", "disturbed"):
            del tree[name]
    return tree


def encode_result(result: SweepResult) -> dict[str, Any]:
    """Returns a result as JSON values, as its file holds them."""
    return {"reason": result.reason, **encode_confirmation(result.confirmation)}


def decode_result(tree: Mapping[str, Any]) -> SweepResult:
    """Returns the result that `encode_result` wrote.

    Raises:
        ValueError: A required key is missing, or a value has the wrong type.
    """
    reason = tree.get("reason")
    if not isinstance(reason, str):
        raise ValueError(f"`reason` must be text, but got {reason!r}")
    return SweepResult(reason=reason, confirmation=decode(ConfirmationResult, tree))
