"""Compares how two versions train: seeded runs that are recorded bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sweeper.core.measurement import Measurement
from sweeper.interventions.intervention import CLOSE, EXACT, HALF, SINGLE
from sweeper.judging.arms import Arm
from sweeper.tuning.proofs import Proofs

HALF_PRECISIONS = ("bf16", "fp16")


class Losses(StrEnum):
    """The answer: the same in every bit, the same but for rounding, something else, or not to be had."""

    EQUAL = "equal"
    CLOSE = "close"
    DIFFERENT = "different"
    UNKNOWN = "unknown"


_ANSWERS = {EXACT: Losses.EQUAL, CLOSE: Losses.CLOSE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """How the second version trains.

    Attributes:
        why: What differs first, or why it is unknown.
        covers: What the recorded runs cover, in words.
    """

    answer: Losses
    why: str = ""
    covers: str = ""


def compare(arms: tuple[Arm, Arm], before: Measurement, after: Measurement) -> Trained:
    """Returns how the second version trains, compared with the first.

    Args:
        before: The first as it was timed: how long its steps are, and what it uses; `after` the second.
    """
    first, second = arms
    steps_per_s = 1000 / before.step_ms if before.step_ms else 1.0
    proofs = Proofs(first.command, first.folder, {}, steps_per_s, on_gpu=before.trains_on_gpu)
    if proofs.unproved:
        return Trained(answer=Losses.UNKNOWN, why=proofs.unproved)
    kind, why = proofs.other(second.command, second.folder, _rounding(before.observed, after.observed))
    answer = _ANSWERS.get(kind, Losses.DIFFERENT)
    return Trained(answer=answer, why=why, covers=proofs.covers)


def _rounding(before: Mapping[str, Any], after: Mapping[str, Any]) -> float:
    """Returns how much rounding may explain: half the bits are expected to be lost only where they are."""
    was, now = before.get("precision"), after.get("precision")
    return HALF if now in HALF_PRECISIONS and was not in HALF_PRECISIONS else SINGLE
