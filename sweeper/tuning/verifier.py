"""Verifies changes in the processes of a race: compares the record of each with the baseline's.

In the tune's first race, a record has the first steps of the script, as it is. In the race at the end, it
has the ends of two passes, which are cut short; and the baseline's later processes have other seeds, which
show how far apart the curves of one training may lie.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from sweeper.core.job import read_outcome
from sweeper.core.measurement import Failure
from sweeper.core.recording import Recording
from sweeper.race.log import BASELINE, Event, Started, Turned, Verified
from sweeper.race.policy import Start
from sweeper.race.record import BEYOND, Record, extent_of
from sweeper.race.verify import OTHER_SEEDS, Answer, Claim, Reference, Repeats
from sweeper.script.changes import CHANGES
from sweeper.script.changes.change import SINGLE
from sweeper.script.inside.recorder import EXIT
from sweeper.script.run.running import RECORD_ONLY
from sweeper.script.run.warm import read_record
from sweeper.tuning.changes import ChangeValue, claim_of

FIRST_STEPS, FIRST_SECONDS = 60, 2.0
"""Steps of the first record, unless they take longer than so many seconds."""
LONG_SECONDS = 30.0
"""Seconds after which a record of passes that are cut short is cut off."""


class SeedRun(NamedTuple):
    """A run of an arm, to be recorded only, with a shift of its seeds."""

    arm: int
    shift: int


@dataclass(slots=True)
class _Arm:
    """A process with changes, whose comparison may still be open.

    Attributes:
        event: What was said about it so far; None before that.
    """

    number: int
    claim: Claim
    missing: tuple[str, ...]
    record: Record
    event: Verified | None = None


class RaceVerifier:
    """Compares the records of a race's processes.

    Attributes:
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
        self._reference = Reference(repeats)
        self._arms: dict[int, _Arm] = {}
        self._recorded: set[int] = set()
        self._seeds: dict[int, dict[int, Record]] = {}
        self._doubted: set[int] = set()
        self.ends_early = False
        self.limit_seconds = 0.0

    @property
    def repeats(self) -> Repeats:
        """Whether the script repeats itself."""
        return self._reference.repeats

    def recording(self, start: Start) -> Recording | None:
        """Returns how the first steps of a process are recorded; None if they are not."""
        records = self._reference.records
        if not self._batches:
            steps = _num_steps(records[0]) if records else 0
            shift = 0
            if start.arm == BASELINE and records and self.repeats.race:
                # Repeats alone lie closer to each other than trainings may.
                shift = next((shift for shift in OTHER_SEEDS if shift not in self._reference.seeds), 0)
            seconds = 0.0 if steps else FIRST_SECONDS
            more = _more_seconds(word.partition("=")[0] for word in start.members)
            limit = self.limit_seconds and self.limit_seconds + more
            return Recording(steps=steps or FIRST_STEPS, seconds=seconds, shift=shift, limit_seconds=limit)
        has_record = records if start.arm == BASELINE else start.arm in self._recorded
        if start.round == 0 or not (has_record or self.ends_early):
            return self.long_recording(changes=() if start.arm == BASELINE else self._changes(start))
        # What is compared is started in the same way: arms are recorded, too.
        rest = OTHER_SEEDS[start.round - 1 : start.round]
        return self.long_recording(rest[0]) if rest and not self.ends_early else None

    def long_recording(self, shift: int = 0, changes: Sequence[ChangeValue] = ()) -> Recording:
        """Returns the terms of records with the ends of passes."""
        limit = self.limit_seconds and self.limit_seconds + _more_seconds(change.name for change in changes)
        return Recording(batches=self._batches, seconds=LONG_SECONDS, shift=shift, limit_seconds=limit)

    def verify(self, life: int, start: Start, folder: Path, failure: str) -> Sequence[Verified]:
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
            if not record.failure:
                self._seeds.setdefault(start.arm, {})[terms.shift] = record
        elif start.arm == BASELINE:
            if not record.failure:
                self._reference.enter(record, terms.shift)
        else:
            changes = self._changes(start)
            missing = missing_of([change.name for change in changes], record)
            here = [change for change in changes if change.name not in missing]
            texts = tuple(f"{name}: {why}" for name, why in missing.items())
            self._arms[life] = _Arm(start.arm, claim_of(here), texts, record)
            if not record.failure:
                self._recorded.add(start.arm)
        return list(self._news()) if self._reference.records else ()

    def replay(self, log: Sequence[Event], folder: Path) -> None:
        """Enters the records of a race that goes on.

        Args:
            log: Its events so far.
            folder: The folder of its processes.
        """
        warm = {event.life for event in log if isinstance(event, Turned)}
        for event in log:
            if not isinstance(event, Started):
                continue
            place = folder / f"{event.life:04d}"
            outcome, failure = read_outcome(place), ""
            if isinstance(outcome, Failure) and event.life not in warm:
                # One that has failed later had a whole record.
                failure = f"{outcome.kind}: {outcome.message}"
            self.verify(event.life, Start(event.arm, event.round, 0.0), place, failure)

    def seed_wanted(self, arm: int) -> SeedRun | None:
        """Returns the run with another seed that would say more about an arm: the baseline's, or its own.

        Returns None if everything is known that can be. In half precision, a single run that is far off may
        be chance: the arm has as many runs as the baseline before it is refused.
        """
        processes = (one for one in self._arms.values() if one.number == arm and one.event)
        process = next((one for one in processes if not one.record.failure), None)
        if process is None:
            return None
        answer = self._answer(process)
        if BEYOND in answer.fault and process.claim.rounding > SINGLE and not self.repeats.race:
            self._doubted.add(arm)
        # None of these runs decides before the last one: the first that is near would be chosen.
        seeds = self._seeds.get(arm, {})
        missing = [shift for shift in self._reference.seeds if shift not in seeds]
        if missing and arm in self._doubted:
            return SeedRun(arm, missing[0])
        shift = next(iter(self._reference.shifts_wanted(process.claim, answer)), None)
        return None if shift is None else SeedRun(BASELINE, shift)

    def enter_seed(self, run: SeedRun, folder: Path) -> Mapping[int, Verified]:
        """Enters the record of a run with another seed; returns what is now known, by arm."""
        record = read_record(folder)
        if run.arm == BASELINE:
            self._reference.enter(record, run.shift)
        else:
            self._seeds.setdefault(run.arm, {})[run.shift] = record
        return {self._arms[event.life].number: event for event in self._news()}

    def _news(self) -> Iterable[Verified]:
        for life, arm in self._arms.items():
            now = self._compare(life, arm)
            if now != arm.event:
                arm.event = now
                yield now

    def _answer(self, arm: _Arm) -> Answer:
        return self._reference.answer(arm.record, arm.claim, self._seeds.get(arm.number, {}))

    def _compare(self, life: int, arm: _Arm) -> Verified:
        """Returns what is known about a process."""
        extent = extent_of(arm.record, self._reference.records[0])
        event = Verified(life, 0.0, extent=extent, missing=arm.missing)
        if arm.record.failure:
            return replace(event, fault=arm.record.failure, is_failure=True)
        answer = self._answer(arm)
        return replace(event, kind=answer.kind, fault=answer.fault, is_open=answer.is_open)


def _more_seconds(names: Iterable[str]) -> float:
    """Returns how long changes may take to make."""
    return sum(CHANGES[name].limit_seconds for name in names if name in CHANGES)


def _num_steps(record: Record) -> int:
    return max((sum("step" in event for event in events) for events in record.events.values()), default=0)


def _has_ended(record: Record) -> bool:
    """Returns whether the script has ended by itself before its record was complete."""
    return any(events and events[-1].get("end") == EXIT for events in record.events.values())


def missing_of(names: Collection[str], record: Record) -> dict[str, str]:
    """Returns why changes are not in effect, by name.

    Args:
        names: Names of the changes that were to be made.
    """
    if record.failure:
        return {}
    missing = {name: why for name, why in record.changes.items() if why}
    # The built-in ones report when they act, such as when a loader begins a pass.
    reporting = {name for name in names if name in CHANGES and not CHANGES[name].is_of_environment}
    missing.update(
        dict.fromkeys(reporting - record.changes.keys(), "the training never uses what it changes")
    )
    return {name: missing[name] for name in names if name in missing}
