"""Compares how two versions train, by seeded runs that are recorded bit for bit."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sweeper.core.measurement import Measurement
from sweeper.core.recording import Recording
from sweeper.judging.arms import PASSIVE, Arm
from sweeper.race.record import Record, extent_of
from sweeper.race.verify import Answer, Claim, Reference, batches_of_a_pass
from sweeper.script.changes.change import CLOSE, DRAWS, EXACT, HALF, SINGLE
from sweeper.script.run.failure import is_for_want_of_room
from sweeper.script.run.watch import record

LIMIT_SECONDS, RECORD_SECONDS = 60.0, 30.0
"""Seconds in which a record must be complete, beside a start, and after which it is cut off."""
HALF_PRECISIONS = ("bf16", "fp16")


class LossAgreement(StrEnum):
    """The answer: equal in every bit, equal but for rounding or for draws, different, or unknown."""

    EQUAL = "equal"
    CLOSE = "close"
    REDRAWN = "the same but for its draws"
    DIFFERENT = "different"
    UNKNOWN = "unknown"


_ANSWERS = {EXACT: LossAgreement.EQUAL, CLOSE: LossAgreement.CLOSE, DRAWS: LossAgreement.REDRAWN}


@dataclass(frozen=True, slots=True, kw_only=True)
class LossComparison:
    """A comparison of the second version's training with that of the first.

    Attributes:
        why: The first difference, or why the answer is unknown.
        covers: The extent of the recorded runs, in words.
    """

    answer: LossAgreement
    why: str = ""
    covers: str = ""

    @property
    def is_same(self) -> bool:
        """Whether the training is the same: in every bit, or but for rounding or draws that may differ."""
        return self.answer in (LossAgreement.EQUAL, LossAgreement.CLOSE, LossAgreement.REDRAWN)


class Baseline:
    """The recorded runs of a version, to which others are compared.

    Args:
        measured: Measurement of the version, for its step time and its device.
        other: Measurement of a version that will be compared. It may take longer to start, as one that
            compiles its model does.
    """

    def __init__(self, arm: Arm, measured: Measurement, other: Measurement | None = None) -> None:
        start = max(one.startup_seconds + one.first_step_seconds for one in (measured, other or measured))
        self._arm = arm
        self._recording = Recording(
            batches=batches_of_a_pass(measured.step_ms / 1000),
            seconds=RECORD_SECONDS,
            # Two runs share the cores.
            limit_seconds=LIMIT_SECONDS + 2 * start,
        )
        # A GPU may not have room for two runs.
        self._is_on_gpu = measured.trains_on_gpu
        self._at_once = 1 if self._is_on_gpu else min(2, len(os.sched_getaffinity(0)))
        self._reference = Reference()

    def compare(self, arm: Arm, claim: Claim) -> LossComparison:
        """Compares the training of another version with the baseline's.

        Args:
            claim: How it is to train.
        """
        trained = self._compare(arm, claim)
        repeats = self._reference.repeats
        if repeats.are_equal is not False or self._recording.deterministic:
            return trained
        if repeats.race and not self._is_on_gpu:
            return trained
        # Sums on a GPU may add in any order, unless torch is asked for one.
        self._recording = dataclasses.replace(self._recording, deterministic=True)
        self._reference = Reference()
        return self._compare(arm, claim)

    def _compare(self, arm: Arm, claim: Claim) -> LossComparison:
        reference = self._reference
        if reference.records:
            (other,) = self._records([(arm, 0)])
        else:
            original, other = self._records([(self._arm, 0), (arm, 0)])
            reference.enter(original)
        if why := reference.records[0].failure:
            return LossComparison(answer=LossAgreement.UNKNOWN, why=why)
        if other.failure:
            return LossComparison(answer=LossAgreement.DIFFERENT, why=other.failure)
        answer = reference.answer(other, claim)
        if self._is_on_gpu and answer.kind != EXACT and len(reference.records) < 2:
            self._enter((0,))
            answer = reference.answer(other, claim)
        while shifts := reference.shifts_wanted(claim, answer):
            self._enter(shifts)
            answer = reference.answer(other, claim)
        return _comparison_of(answer, extent_of(other, reference.records[0]))

    def _enter(self, shifts: Sequence[int]) -> None:
        """Enters records of the version itself. One that has failed says nothing, and is not run again."""
        repeats = self._records([(self._arm, shift) for shift in shifts])
        for shift, repeat in zip(shifts, repeats, strict=True):
            self._reference.enter(repeat, shift)

    def _records(self, runs: Sequence[tuple[Arm, int]]) -> list[Record]:
        """Returns the records of versions, each with a shift of its seeds."""

        def run(arm: Arm, shift: int) -> Record:
            recording = dataclasses.replace(self._recording, shift=shift)
            return record(arm.command, arm.folder, recording, env={**PASSIVE, **arm.env}, cache=arm.cache)

        # The scripts' output is not needed here.
        with (
            open(os.devnull, "w", encoding="utf-8") as nowhere,
            redirect_stdout(nowhere),
            ThreadPoolExecutor(self._at_once) as pool,
        ):
            records = list(pool.map(run, *zip(*runs, strict=True)))
        if min(self._at_once, len(runs)) > 1 and any(is_for_want_of_room("", one.failure) for one in records):
            # Both listen on the same port.
            self._at_once = 1
            return self._records(runs)
        return records


def _comparison_of(answer: Answer, covers: str) -> LossComparison:
    if answer.is_unknown:
        return LossComparison(answer=LossAgreement.UNKNOWN, why=answer.fault)
    if answer.fault:
        return LossComparison(answer=LossAgreement.DIFFERENT, why=answer.fault, covers=covers)
    return LossComparison(answer=_ANSWERS[answer.kind], covers=covers)


def compare(arms: tuple[Arm, Arm], before: Measurement, after: Measurement) -> LossComparison:
    """Compares the training of the second version with that of the first.

    Args:
        before: Measurement of the first version; `after` is that of the second.
    """
    first, second = arms
    claim = Claim(rounding=_rounding(before.observed, after.observed), is_version=True)
    return Baseline(first, before, after).compare(second, claim)


def _rounding(before: Mapping[str, Any], after: Mapping[str, Any]) -> float:
    """Returns the relative difference that rounding explains: `HALF` if only `after` has half precision."""
    was, now = before.get("precision"), after.get("precision")
    return HALF if now in HALF_PRECISIONS and was not in HALF_PRECISIONS else SINGLE
