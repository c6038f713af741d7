"""Holds the findings of a confirmation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
