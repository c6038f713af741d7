"""Compares how two versions train, by seeded runs that are recorded bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sweeper.core.measurement import Measurement
from sweeper.interventions.change import CLOSE, DRAWS, EXACT, HALF, SINGLE
from sweeper.judging.arms import Arm
from sweeper.tuning.proofs import Proofs

HALF_PRECISIONS = ("bf16", "fp16")


class Losses(StrEnum):
    """The answer: equal in every bit, equal but for rounding or for draws, different, or unknown."""

    EQUAL = "equal"
    CLOSE = "close"
    REDRAWN = "the same but for its draws"
    DIFFERENT = "different"
    UNKNOWN = "unknown"


_ANSWERS = {EXACT: Losses.EQUAL, CLOSE: Losses.CLOSE, DRAWS: Losses.REDRAWN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A comparison of the second version's training with that of the first.

    Attributes:
        why: The first difference, or why the answer is unknown.
        covers: The extent of the recorded runs, in words.
    """

    answer: Losses
    why: str = ""
    covers: str = ""

    @property
    def is_same(self) -> bool:
        """Whether the training is the same: in every bit, or but for rounding or draws that may differ."""
        return self.answer in (Losses.EQUAL, Losses.CLOSE, Losses.REDRAWN)


class Baseline:
    """The recorded runs of a version, to which others are compared.

    Args:
        measured: Measurement of the version, for its step time and its device.
        other: Measurement of a version that will be compared. It may take longer to start, as one that
            compiles its model does.
    """

    def __init__(self, arm: Arm, measured: Measurement, other: Measurement | None = None) -> None:
        steps_per_s = 1000 / measured.step_ms if measured.step_ms else 1.0
        start = max(each.startup_seconds + each.first_step_seconds for each in (measured, other or measured))
        self._proofs = Proofs(
            arm.command,
            arm.folder,
            arm.env,
            steps_per_s,
            on_gpu=measured.trains_on_gpu,
            cache=arm.cache,
            start_seconds=start,
        )

    def compare(
        self, arm: Arm, rounding: float, *, is_redrawn: bool = False, same_arithmetic: bool = False
    ) -> Trained:
        """Compares the training of another version with the baseline's.

        Args:
            rounding: Relative difference of the first gradients that rounding explains.
            is_redrawn: Whether the version may draw other random numbers, as with another seed.
            same_arithmetic: Whether the version leaves the arithmetic alone. Only then can it be compared
                if the processes of the training race.
        """
        if why := self._proofs.unproved or ("" if same_arithmetic else self._proofs.races):
            return Trained(answer=Losses.UNKNOWN, why=why)
        kind, why = self._proofs.other(arm.command, arm.folder, rounding, env=arm.env, is_redrawn=is_redrawn)
        answer = _ANSWERS.get(kind, Losses.DIFFERENT)
        return Trained(answer=answer, why=why, covers=self._proofs.covers)


def compare(arms: tuple[Arm, Arm], before: Measurement, after: Measurement) -> Trained:
    """Compares the training of the second version with that of the first.

    Args:
        before: Measurement of the first version; `after` is that of the second.
    """
    first, second = arms
    return Baseline(first, before, after).compare(second, _rounding(before.observed, after.observed))


def _rounding(before: Mapping[str, Any], after: Mapping[str, Any]) -> float:
    """Returns the relative difference that rounding explains: `HALF` if only `after` has half precision."""
    was, now = before.get("precision"), after.get("precision")
    return HALF if now in HALF_PRECISIONS and was not in HALF_PRECISIONS else SINGLE
