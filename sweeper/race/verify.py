"""Verifies how an arm trains: compares its record with the baseline's, of which there are as many as needed.

Two records of the baseline with the same seeds show whether it repeats itself; those with other seeds show
how far apart the curves of one training may lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sweeper.race.record import BEYOND, HOGWILD, Record, exact_difference, real_difference
from sweeper.script.changes.change import CLOSE, DRAWS, EXACT, SINGLE

OTHER_SEEDS, MORE_SEEDS = (1000, 2000), (3000, 4000, 5000)
"""Shifts of the seeds of further records. In half precision, two are too few: parameters soon differ, and
gradients with them."""
MIN_RACING = 3
"""Fewest other records that show how far apart those of processes lie which race for the same parameters."""
NONE: Mapping[int, Record] = MappingProxyType({})
RACES = "two runs of the unchanged script differ, as where processes race for the same parameters"
MIN_BATCHES, MAX_BATCHES, PASS_SECONDS = 8, 60, 1.0
"""Fewest and most batches of a pass that is cut short, and seconds that it takes in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """How an arm is to train.

    Attributes:
        kind: `EXACT` (equal to the baseline in every bit), `CLOSE` (up to rounding) or `DRAWS` (up to its
            random draws).
        rounding: Relative difference of the first gradients that rounding explains.
        keeps_arithmetic: Whether only what surrounds the arithmetic differs, such as who makes the batches.
            Otherwise it cannot be compared if processes race: wrong arithmetic would hide in that.
        is_version: Whether it is another version of the script, not the script with changes at run time.
    """

    kind: str = CLOSE
    rounding: float = SINGLE
    keeps_arithmetic: bool = False
    is_version: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is known about the training of an arm.

    Attributes:
        kind: How it was compared; empty if it only could be equal in every bit, and is not.
        fault: What differs first; empty if nothing does.
        is_open: Whether another record of the baseline has to show if it repeats itself.
        is_unknown: Whether the fault is the baseline's, which does not repeat itself.
    """

    kind: str = ""
    fault: str = ""
    is_open: bool = False
    is_unknown: bool = False


@dataclass(frozen=True, slots=True)
class Repeats:
    """What two runs of the unchanged script with the same seeds have shown.

    Attributes:
        are_equal: Whether they are equal in every bit; None if that is not known.
        race: Whether their processes race for the same parameters.
        difference: What differs by more than rounding between them, for another reason; empty if nothing.
    """

    are_equal: bool | None = None
    race: bool = False
    difference: str = ""


class Reference:
    """The records of a baseline.

    Attributes:
        repeats: Whether it repeats itself.
        records: Those with its own seeds, in order.
        seeds: Those with other seeds, by the shift of the seeds.
    """

    def __init__(self, repeats: Repeats | None = None) -> None:
        """Has no record yet.

        Args:
            repeats: What is known about the script.
        """
        self.repeats = repeats or Repeats()
        self.records: list[Record] = []
        self.seeds: dict[int, Record] = {}

    def enter(self, record: Record, shift: int = 0) -> None:
        """Enters a record.

        Args:
            shift: What was added to its seeds.
        """
        if shift:
            self.seeds[shift] = record
        else:
            self.records.append(record)
        if self.repeats.are_equal is None and len(self.records) > 1:
            self.repeats = _repeats(*self.records[:2])

    def answer(self, record: Record, claim: Claim, seeds: Mapping[int, Record] = NONE) -> Answer:
        """Returns what is known about an arm with this record.

        Args:
            seeds: Records of the arm with other seeds, by the shift of the seeds.
        """
        baseline, repeats = self.records[0], self.repeats
        if not (fault := exact_difference(record, baseline)):
            return Answer(kind=EXACT)
        is_exact = claim.kind == EXACT
        if is_exact and repeats.are_equal is not False:
            return Answer(fault=fault, is_open=repeats.are_equal is None)
        # In half precision, a GPU's choice of kernels differs by more than in single.
        if repeats.difference and (is_exact or claim.rounding <= SINGLE):
            why = f"two runs of the unchanged script with the same seeds differ: {repeats.difference}"
            return Answer(fault=why, is_unknown=True)
        if repeats.race and not claim.keeps_arithmetic:
            return Answer(fault=RACES, is_unknown=True)
        seeded = [record for record in self.seeds.values() if record.events]
        others = [*self.records[1:], *seeded]
        pairs = [
            (arm_record, self.seeds[shift]) for shift, arm_record in seeds.items() if shift in self.seeds
        ]
        fault = real_difference(
            record,
            baseline,
            others,
            HOGWILD if repeats.race else SINGLE if is_exact else claim.rounding,
            pairs=pairs,
            is_redrawn=claim.kind == DRAWS,
            is_version=claim.is_version,
            is_early=len(seeded) < len(OTHER_SEEDS) and not repeats.race,
        )
        kind = DRAWS if claim.kind == DRAWS else CLOSE
        is_open = repeats.are_equal is None or (repeats.race and len(others) < MIN_RACING)
        return Answer(kind=kind, fault=fault, is_open=bool(fault) and is_open)

    def shifts_wanted(self, claim: Claim, answer: Answer) -> tuple[int, ...]:
        """Returns the shifts of the seeds of those records that would say more; empty if none would."""
        if answer.is_open and not self.repeats.race and len(self.records) < 2:
            return (0,)
        if answer.kind in (EXACT, ""):
            return ()
        shifts: tuple[int, ...] = OTHER_SEEDS
        if self.repeats.race:
            shifts = (*OTHER_SEEDS, *MORE_SEEDS)[: max(0, MIN_RACING - len(self.records) + 1)]
        elif BEYOND in answer.fault and claim.rounding > SINGLE:
            shifts += MORE_SEEDS
        elif answer.fault:
            return ()
        return tuple(shift for shift in shifts if shift not in self.seeds)


def batches_of_a_pass(step_seconds: float) -> int:
    """Returns the number of batches of a pass that is cut short."""
    batches = PASS_SECONDS / step_seconds if step_seconds else MIN_BATCHES
    return int(max(MIN_BATCHES, min(MAX_BATCHES, batches)))


def _repeats(first: Record, second: Record) -> Repeats:
    if not exact_difference(first, second):
        return Repeats(are_equal=True)
    difference = real_difference(second, first, [], SINGLE, is_early=True)
    if difference and len(first.events) > 1:
        return Repeats(are_equal=False, race=True)
    return Repeats(are_equal=False, difference=difference)
