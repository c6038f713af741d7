"""Proves changes before they are tried: compares recorded runs with those of the unchanged script."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path

from sweeper.interventions import CHANGES, known
from sweeper.interventions.change import CLOSE, DRAWS, EXACT, SINGLE
from sweeper.interventions.loader import Loader
from sweeper.race.record import BEYOND, HOGWILD, Record, close, crossed, equal
from sweeper.script.proof import LIMIT_SECONDS, Terms, record
from sweeper.tuning.changes import ChangeValue, environment

MIN_BATCHES, MAX_BATCHES, PASS_SECONDS = 8, 60, 1.0
"""Minimum and maximum batches of a recorded pass; between them, a pass takes about this many seconds."""

OTHER_SEEDS, MORE_SEEDS = (1000, 2000), (3000, 4000, 5000)
"""Shifts of the script's seeds, for runs that show how far apart its curves may lie. Two runs are too few in
half precision, where later gradients are those of other parameters."""

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True)
class _Run:
    """A run to record.

    Attributes:
        env: Environment variables that make its changes.
        shift: Added to the seeds of the script.
        more_seconds: Extends its time limit.
    """

    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    shift: int = 0
    more_seconds: float = 0.0


class Proofs:
    """Recorded runs of one command.

    Attributes:
        unproved: Why nothing can be proved; empty if changes can be.
        races: Why changes of the arithmetic cannot be proved; empty if they can be.
        covers: The extent of the runs, in words.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        env: Mapping[str, str],
        steps_per_s: float,
        *,
        on_gpu: bool,
        file: Path | None = None,
        cache: Path | None = None,
        start_seconds: float = 0.0,
    ) -> None:
        """Runs the command twice, to see whether it repeats itself.

        Args:
            env: Its additional environment variables.
            steps_per_s: Its speed.
            on_gpu: Whether it trains on a GPU.
            file: File with the user's own changes.
            cache: Folder that the runs share.
            start_seconds: Seconds until its first step, which extend the time limit of a run.
        """
        self._command, self._folder, self._env, self._file = command, folder, dict(env), file
        self._cache = cache
        self._known = known(str(file) if file else "")
        # Two runs share the cores.
        self._limit = LIMIT_SECONDS + 2 * start_seconds
        batches = int(max(MIN_BATCHES, min(MAX_BATCHES, PASS_SECONDS * steps_per_s)))
        self._terms = Terms(batches=batches)
        # A GPU may not have room for two runs.
        self._at_once = 1 if on_gpu else max(1, min(2, len(os.sched_getaffinity(0))))
        self._seeds: list[Record] = []
        self._tried: set[int] = set()
        self._repeats = True
        self.unproved = self.races = self.covers = ""
        self._baseline = self._repeated()

    def _repeated(self) -> Record:
        """Returns a run of the unchanged script, after comparing it with a second one.

        Sets `unproved` or `races` if a run fails, or the two are neither equal nor close.
        """
        for deterministic in (False, True):
            self._terms = dataclasses.replace(self._terms, deterministic=deterministic)
            first, second = self._runs([_Run(), _Run()])
            if first.failure or second.failure:
                self.unproved = first.failure or second.failure
                return first
            fault = equal(first, second)
            self.covers = crossed(first, second)
            if not fault:
                return first
        self._baseline, self._repeats = first, False
        if why := self._close(second, SINGLE):
            self._seeds.append(second)
            if len(first.events) > 1 and not self._close(self._runs([_Run()])[0], HOGWILD):
                self.races = "two runs of the unchanged script differ, because its processes race"
            else:
                self.unproved = f"two runs of the unchanged script with the same seeds differ: {why}"
        return first

    def _runs(
        self,
        runs: Sequence[_Run],
        command: Sequence[str] = (),
        folder: Path | None = None,
    ) -> list[Record]:
        def recorded(run: _Run) -> Record:
            terms = dataclasses.replace(self._terms, shift=run.shift)
            env, limit = {**self._env, **run.env}, self._limit + run.more_seconds
            return record(command or self._command, folder or self._folder, env, terms, self._cache, limit)

        # The script's output is not needed here.
        with (
            open(os.devnull, "w", encoding="utf-8") as nowhere,
            redirect_stdout(nowhere),
            ThreadPoolExecutor(self._at_once) as pool,
        ):
            return list(pool.map(recorded, runs))

    def prove(self, changes: Sequence[ChangeValue], say: Say) -> list[ChangeValue]:
        """Returns the changes, each with its proof or with the reason why it is refused.

        Changes of the same kind and rounding are proved together; if that fails, the faulty one is looked for
        by halving. A change of the training itself cannot be proved, and is returned as it is.
        """
        if self.races:
            # Wrong arithmetic would hide in the differences between repeats; batches are compared exactly.
            apart = {each.name for each in changes if each.is_of_environment} | {Loader.name}
            changes = [e if e.refused or e.name in apart else _refused(e, self.races) for e in changes]
        found = {(each.name, each.value): each for each in changes}

        def conclude(change: ChangeValue) -> None:
            found[change.name, change.value] = change
            say(f"  {change}: {change.proof or f'left out, {change.refused}'}")

        def pending() -> list[ChangeValue]:
            return [e for e in found.values() if not (e.refused or e.proof or e.changes_training)]

        while left := pending():
            if self.unproved:
                return [dataclasses.replace(e, refused=e.refused or self.unproved) for e in found.values()]
            ready: list[ChangeValue] = []
            for each in left:
                before = [e for e in changes[: changes.index(each)] if e.name == each.name]
                proved = [e for e in before if found[e.name, e.value].proof]
                if each.is_fallback and proved:
                    found[each.name, each.value] = _refused(each, f"{proved[0]} is tried instead")
                elif not any(e.name == each.name for e in ready):
                    ready.append(each)
            groups = list(_alike(ready))
            for alike, run in zip(groups, self._with(groups), strict=True):
                for each in self._proved(alike, run):
                    conclude(each)
        return list(found.values())

    def _proved(self, asked: Sequence[ChangeValue], run: Record) -> list[ChangeValue]:
        missing = {name: why for name, why in run.changes.items() if why}
        if not run.failure:
            # The built-in ones report when they act, such as when a loader begins a pass.
            silent = {n for n, e in CHANGES.items() if not e.is_of_environment} - run.changes.keys()
            missing.update(dict.fromkeys(silent, "the training does not use what it changes"))
        here = [each for each in asked if each.name not in missing]
        apart = [_refused(each, missing[each.name]) for each in asked if each not in here]
        if not here:
            return apart
        if not (fault := self._fault(run, here[0])):
            return [*apart, *(dataclasses.replace(each, proof=self._proof(each.kind)) for each in here)]
        return [*apart, *self._proved_but_one(here, fault)]

    def _proved_but_one(self, changes: Sequence[ChangeValue], fault: str) -> list[ChangeValue]:
        """Returns changes that fail together: refused is the first one with which those before it fail.

        Args:
            fault: Why they fail together.
        """
        passing, failing = 0, len(changes)
        while failing - passing > 1:
            middle = (passing + failing) // 2
            (run,) = self._with([changes[:middle]])
            if said := self._fault(run, changes[0]):
                failing, fault = middle, said
            else:
                passing = middle
        before, after = changes[:passing], changes[failing:]
        refused = _refused(changes[passing], fault)
        if not after:
            proof = self._proof(refused.kind)
            return [*(dataclasses.replace(change, proof=proof) for change in before), refused]
        (run,) = self._with([[*before, *after]])
        return [refused, *self._proved([*before, *after], run)]

    def stack(self, changes: Sequence[ChangeValue]) -> tuple[str, str]:
        """Returns the observed kind of several changes together, and the fault of their run, if any."""
        plain = [each for each in changes if each.kind != DRAWS]
        if 0 < len(plain) < len(changes) and (found := self.stack(plain))[1]:
            # Other draws would hide this fault.
            return found
        run = self._with([changes])[0]
        fault = equal(run, self._baseline)
        kinds = (EXACT, CLOSE, DRAWS)
        roughest = max(changes, key=lambda each: (kinds.index(each.kind), each.rounding), default=None)
        if not fault or roughest is None or (roughest.kind == EXACT and self._repeats):
            return EXACT, fault
        return roughest.kind if roughest.kind == DRAWS else CLOSE, self._fault(run, roughest)

    def other(
        self,
        command: Sequence[str],
        folder: Path,
        rounding: float,
        *,
        env: Mapping[str, str],
        is_redrawn: bool = False,
    ) -> tuple[str, str]:
        """Compares another version of the script with the command's.

        Args:
            rounding: Relative difference in the first steps that rounding explains.
            env: Its additional environment variables.
            is_redrawn: Whether the version may draw other random numbers.

        Returns:
            Its kind, which is empty if it trains differently, and what differs first.
        """
        (run,) = self._runs([_Run(env)], command, folder)
        if run.failure:
            return "", run.failure
        self.covers = crossed(run, self._baseline)
        if not equal(run, self._baseline):
            return EXACT, ""
        rounding = HOGWILD if self.races else rounding
        fault = self._close(run, rounding, is_redrawn=is_redrawn, is_version=True)
        return ("", fault) if fault else (DRAWS if is_redrawn else CLOSE, "")

    def _with(self, groups: Sequence[Sequence[ChangeValue]]) -> list[Record]:
        """Runs the script with each group of changes, and with other seeds if the comparisons need them."""
        is_rough = any(each.kind != EXACT for group in groups for each in group)
        new = [shift for shift in OTHER_SEEDS if is_rough and shift not in self._tried]
        with_changes = [
            _Run(environment(group, self._file), more_seconds=sum(self._more_seconds(e) for e in group))
            for group in groups
        ]
        runs = self._runs([*with_changes, *(_Run(shift=shift) for shift in new)])
        self._add_seeds(new, runs[len(groups) :])
        return runs[: len(groups)]

    def _more_seconds(self, change: ChangeValue) -> float:
        known = self._known.get(change.name)
        return known.limit_seconds if known is not None else 0.0

    def _fault(self, run: Record, change: ChangeValue) -> str:
        if run.failure:
            return run.failure
        if change.kind == EXACT and self._repeats:
            return equal(run, self._baseline)
        rounding = HOGWILD if self.races else change.rounding
        return self._close(run, rounding, is_redrawn=change.kind == DRAWS)

    def _close(self, run: Record, rounding: float, **kinds: bool) -> str:
        self._have_seeds(OTHER_SEEDS)
        fault = close(run, self._baseline, self._seeds, rounding, **kinds)
        if BEYOND in fault and rounding > SINGLE:
            self._have_seeds((*OTHER_SEEDS, *MORE_SEEDS))
            fault = close(run, self._baseline, self._seeds, rounding, **kinds)
        return fault

    def _have_seeds(self, shifts: Sequence[int]) -> None:
        new = [shift for shift in shifts if shift not in self._tried]
        self._add_seeds(new, self._runs([_Run(shift=shift) for shift in new]))

    def _add_seeds(self, shifts: Sequence[int], runs: Sequence[Record]) -> None:
        self._tried.update(shifts)
        self._seeds += [each for each in runs if not each.failure]

    def _proof(self, kind: str) -> str:
        if self.races:
            return f"the same batches and draws, with differences as between its repeats, over {self.covers}"
        if kind == DRAWS:
            return f"the same but for its draws, with differences as between seeds, over {self.covers}"
        if not self._repeats:
            return f"equal but for rounding, as two runs of the unchanged script are, over {self.covers}"
        how = "equal in every bit" if kind == EXACT else "equal but for rounding"
        return f"{how} over {self.covers}"


def _alike(changes: Sequence[ChangeValue]) -> Iterator[list[ChangeValue]]:
    """Yields the changes in groups of the same kind and rounding, exact ones first."""
    keys = sorted({(each.kind != EXACT, each.rounding, each.kind) for each in changes})
    for key in keys:
        yield [each for each in changes if (each.kind != EXACT, each.rounding, each.kind) == key]


def _refused(change: ChangeValue, why: str) -> ChangeValue:
    return dataclasses.replace(change, refused=why)
