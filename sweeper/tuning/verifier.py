"""Verifies changes in the processes of a race: compares the record of each with the baseline's.

In the tune's first race, a record has the first steps of the script, as it is. In the race at the end, it
has the ends of two passes, which are cut short; and the baseline's later processes have other seeds, which
show how far apart the curves of one training may lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sweeper.core.recording import Recording
from sweeper.inject.recorder import EXIT
from sweeper.interventions import CHANGES
from sweeper.interventions.change import CLOSE, DRAWS, EXACT, SINGLE
from sweeper.interventions.loader import Loader
from sweeper.race.log import BASELINE, Verified
from sweeper.race.policy import Start
from sweeper.race.record import BEYOND, HOGWILD, Record, close, crossed, equal
from sweeper.script.trial import RECORD_ONLY
from sweeper.script.warm import read_record
from sweeper.tuning.changes import ChangeValue

FIRST_STEPS, FIRST_SECONDS = 60, 2.0
"""Steps of the first record, unless they take longer than so many seconds."""
MIN_BATCHES, MAX_BATCHES, PASS_SECONDS, LONG_SECONDS = 8, 60, 1.0, 30.0
"""Fewest and most batches of a pass that is cut short, seconds that it takes in between, and seconds after
which such a record is cut off."""
OTHER_SEEDS, MORE_SEEDS = (1000, 2000), (3000, 4000, 5000)
"""Shifts of the seeds of the baseline's later processes. Two are too few in half precision, where later
gradients are those of other parameters."""


MIN_RACING = 3
"""Fewest other runs that show how far apart those of processes lie which race for the same parameters."""


@dataclass(slots=True)
class _Compared:
    """A process with changes, whose comparison may still be open.

    Attributes:
        said: What was said about it so far; None before that.
    """

    arm: int
    changes: Sequence[ChangeValue]
    missing: tuple[str, ...]
    record: Record
    said: Verified | None = None


@dataclass(frozen=True, slots=True)
class Repeats:
    """What two runs of the unchanged script with the same seeds have shown.

    Attributes:
        are_equal: Whether they are equal in every bit; None if that is not known.
        race: Whether their processes race for the same parameters.
    """

    are_equal: bool | None = None
    race: bool = False


class RaceVerifier:
    """Compares the records of a race's processes.

    Attributes:
        repeats: Whether the script repeats itself.
        ends_early: Whether the script has trained for no longer than a record.
        limit_seconds: Seconds from the start of a script to the end of its record, at most; 0 for no limit.
    """

    def __init__(
        self,
        changes: Callable[[Start], Sequence[ChangeValue]],
        *,
        batches: int = 0,
        repeats: Repeats | None = None,
    ) -> None:
        """Knows no record yet.

        Args:
            changes: Returns what the arm of a process changes.
            batches: Number of batches of each pass, if passes are cut short; 0 if they are not.
            repeats: What is known about the script.
        """
        self._changes, self._batches = changes, batches
        self._known: dict[int, _Compared] = {}
        self._baseline: list[Record] = []
        self._seeds: dict[int, Record] = {}
        self._recorded: set[int] = set()
        self.repeats, self.ends_early = repeats or Repeats(), False
        self.limit_seconds = 0.0

    def recording(self, start: Start) -> Recording | None:
        """Returns how the first steps of a process are recorded; None if they are not."""
        if not self._batches:
            steps = _num_steps(self._baseline[0]) if self._baseline else 0
            shift = 0
            if start.arm == BASELINE and self._baseline and self.repeats.race:
                # Repeats alone lie closer to each other than trainings may.
                shift = next((shift for shift in OTHER_SEEDS if shift not in self._seeds), 0)
            seconds = 0.0 if steps else FIRST_SECONDS
            more = _more_seconds(word.partition("=")[0] for word in start.members)
            limit = self.limit_seconds and self.limit_seconds + more
            return Recording(steps=steps or FIRST_STEPS, seconds=seconds, shift=shift, limit_seconds=limit)
        has_record = self._baseline if start.arm == BASELINE else start.arm in self._recorded
        if start.round == 0 or not (has_record or self.ends_early):
            return self.long_recording(changes=() if start.arm == BASELINE else self._changes(start))
        # What is compared is started in the same way: arms are recorded, too.
        rest = OTHER_SEEDS[start.round - 1 : start.round]
        return self.long_recording(rest[0]) if rest and not self.ends_early else None

    def long_recording(self, shift: int = 0, changes: Sequence[ChangeValue] = ()) -> Recording:
        """Returns the terms of records with the ends of passes."""
        limit = self.limit_seconds and self.limit_seconds + _more_seconds(change.name for change in changes)
        return Recording(batches=self._batches, seconds=LONG_SECONDS, shift=shift, limit_seconds=limit)

    def verified(self, life: int, start: Start, folder: Path, failure: str) -> Sequence[Verified]:
        """Returns what is known about the training of processes, once another one is warm."""
        terms = self.recording(start)
        if terms is None:
            return ()
        record = read_record(folder)
        has_ended = _has_ended(record) and (not failure or failure.endswith(RECORD_ONLY))
        self.ends_early = self.ends_early or has_ended
        if not (self._batches and has_ended):
            record = replace(record, failure=failure or record.failure)
        if start.arm != BASELINE and terms.shift:
            return ()
        if start.arm == BASELINE:
            if not record.failure:
                self._enter(terms.shift, record)
        else:
            changes = self._changes(start)
            missing = _missing(changes, record)
            here = [change for change in changes if change.name not in missing]
            texts = tuple(f"{name}: {why}" for name, why in missing.items())
            self._known[life] = _Compared(start.arm, here, texts, record)
            if not record.failure:
                self._recorded.add(start.arm)
        return list(self._news()) if self._baseline else ()

    def seed_wanted(self, arm: int) -> int | None:
        """Returns the shift of a seed that the baseline must be recorded with to know more about an arm.

        Returns None if everything is known that can be.
        """
        found = next((one for one in self._known.values() if one.arm == arm and one.said), None)
        if found is None or found.said is None or found.said.is_failure:
            return None
        if found.said.is_open and not self.repeats.race and len(self._baseline) < 2:
            return 0
        if found.said.kind in (EXACT, ""):
            return None
        shifts: tuple[int, ...] = OTHER_SEEDS
        if self.repeats.race:
            shifts = (*OTHER_SEEDS, *MORE_SEEDS)[: max(0, MIN_RACING - len(self._baseline) + 1)]
            return next((shift for shift in shifts if shift not in self._seeds), None)
        if BEYOND in found.said.fault and max(change.rounding for change in found.changes) > SINGLE:
            shifts += MORE_SEEDS
        elif found.said.fault:
            return None
        return next((shift for shift in shifts if shift not in self._seeds), None)

    def enter_seed(self, shift: int, folder: Path) -> Mapping[int, Verified]:
        """Enters a record of the baseline with another seed; returns what is now known, by arm."""
        self._enter(shift, read_record(folder))
        return {self._known[event.life].arm: event for event in self._news()}

    def _enter(self, shift: int, record: Record) -> None:
        if shift:
            self._seeds[shift] = record
        else:
            self._baseline.append(record)
        if self.repeats.are_equal is None and len(self._baseline) > 1:
            first, second = self._baseline[:2]
            are_equal = not equal(first, second)
            is_close = are_equal or not close(second, first, [], SINGLE, is_early=True)
            race = not is_close and len(first.events) > 1
            self.repeats = Repeats(are_equal, race)

    def _news(self) -> Iterable[Verified]:
        for life, compared in self._known.items():
            now = self._compare(life, compared)
            if now != compared.said:
                compared.said = now
                yield now

    def _compare(self, life: int, compared: _Compared) -> Verified:
        """Returns what is known about a process."""
        base, record, changes = self._baseline[0], compared.record, compared.changes
        said = Verified(life, 0.0, extent=crossed(record, base), missing=compared.missing)
        if record.failure:
            return replace(said, fault=record.failure, is_failure=True)
        if not (fault := equal(record, base)):
            return replace(said, kind=EXACT)
        kinds = (EXACT, CLOSE, DRAWS)
        roughest = max(changes, key=lambda change: (kinds.index(change.kind), change.rounding), default=None)
        if roughest is None:
            return replace(said, fault=fault)
        is_exact = roughest.kind == EXACT
        if is_exact and self.repeats.are_equal is not False:
            return replace(said, fault=fault, is_open=self.repeats.are_equal is None)
        if self.repeats.race:
            apart = [
                change for change in changes if not (change.is_of_environment or change.name == Loader.name)
            ]
            if apart:
                # Wrong arithmetic would hide in the differences between repeats.
                why = "two runs of the unchanged script differ, because its processes race"
                return replace(said, fault=why)
        rounding = HOGWILD if self.repeats.race else SINGLE if is_exact else roughest.rounding
        seeds = [*self._baseline[1:], *self._seeds.values()]
        fault = close(
            record,
            base,
            seeds,
            rounding,
            is_redrawn=roughest.kind == DRAWS,
            is_early=len(self._seeds) < len(OTHER_SEEDS) and not self.repeats.race,
        )
        kind = DRAWS if roughest.kind == DRAWS else CLOSE
        is_open = self.repeats.are_equal is None or (self.repeats.race and len(seeds) < MIN_RACING)
        return replace(said, fault=fault, kind=kind, is_open=bool(fault) and is_open)


def batches_of_a_pass(step_seconds: float) -> int:
    """Returns the number of batches of a pass that is cut short."""
    batches = PASS_SECONDS / step_seconds if step_seconds else MIN_BATCHES
    return int(max(MIN_BATCHES, min(MAX_BATCHES, batches)))


def _more_seconds(names: Iterable[str]) -> float:
    """Returns how long changes may take to make."""
    return sum(CHANGES[name].limit_seconds for name in names if name in CHANGES)


def _num_steps(record: Record) -> int:
    return max((sum("step" in event for event in events) for events in record.events.values()), default=0)


def _has_ended(record: Record) -> bool:
    """Returns whether the script has ended by itself before its record was complete."""
    return any(events and events[-1].get("end") == EXIT for events in record.events.values())


def _missing(changes: Sequence[ChangeValue], record: Record) -> dict[str, str]:
    """Returns why changes are not in effect, by name."""
    if record.failure:
        return {}
    missing = {name: why for name, why in record.changes.items() if why}
    for change in changes:
        # The built-in ones report when they act, such as when a loader begins a pass.
        if change.name in CHANGES and not change.is_of_environment and change.name not in record.changes:
            missing[change.name] = "the training does not use what it changes"
    return {change.name: missing[change.name] for change in changes if change.name in missing}
