"""Proves changes before they are tried, by recorded runs that are compared with the script's own."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path

from sweeper.interventions.intervention import CLOSE, EXACT
from sweeper.script.proof import Recorded, Terms, record
from sweeper.tuning.changes import Change, environment
from sweeper.tuning.judge import close, crossed, equal

MIN_BATCHES, MAX_BATCHES, PASS_SECONDS = 8, 60, 1.0
"""Batches of a pass: about as many as the script trains on in so many seconds."""

OTHER_SEEDS = (1000, 2000)

Say = Callable[[str], None]


class Proofs:
    """Recorded runs of one command.

    Attributes:
        unproved: Why nothing can be proved; empty if it can.
        covers: What the runs cover, in words.
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
    ) -> None:
        self._command, self._folder, self._env, self._file = command, folder, dict(env), file
        batches = int(max(MIN_BATCHES, min(MAX_BATCHES, PASS_SECONDS * steps_per_s)))
        self._terms = Terms(batches=batches)
        # A GPU may not have room for two.
        self._at_once = 1 if on_gpu else max(1, min(2, len(os.sched_getaffinity(0))))
        self._seeds: list[Recorded] = []
        self.unproved = self.covers = ""
        self._baseline = self._repeated()

    def _repeated(self) -> Recorded:
        """Returns a run of the unchanged script that equals a second one."""
        for deterministic in (False, True):
            self._terms = dataclasses.replace(self._terms, deterministic=deterministic)
            first, second = self._runs([({}, 0), ({}, 0)])
            if first.failure or second.failure:
                self.unproved = first.failure or second.failure
                return first
            self.unproved = equal(first, second)
            self.covers = crossed(first)
            if not self.unproved:
                break
        if self.unproved:
            self.unproved = f"two runs of the unchanged script with the same seeds differ: {self.unproved}"
        return first

    def _runs(self, asked: Sequence[tuple[Mapping[str, str], int]]) -> list[Recorded]:
        def one(each: tuple[Mapping[str, str], int]) -> Recorded:
            env, shift = each
            terms = dataclasses.replace(self._terms, shift=shift)
            return record(self._command, self._folder, {**self._env, **env}, terms)

        # What the script prints is of no use here.
        with (
            open(os.devnull, "w", encoding="utf-8") as nowhere,
            redirect_stdout(nowhere),
            ThreadPoolExecutor(self._at_once) as pool,
        ):
            return list(pool.map(one, asked))

    def prove(self, changes: Sequence[Change], say: Say) -> list[Change]:
        """Returns the changes with what was proved of them, or why they are refused.

        All of a kind are proved at once; where that fails, one by one.
        """
        if self.unproved:
            return [dataclasses.replace(each, refused=each.refused or self.unproved) for each in changes]
        found = {each.name: each for each in changes}
        for kind in (EXACT, CLOSE):
            asked = [each for each in changes if each.kind == kind and not each.refused]
            if kind == CLOSE and asked:
                self._seeds = self._seeds or self._runs([({}, shift) for shift in OTHER_SEEDS])
            for each in self._proved(asked, changes):
                found[each.name] = each
                say(_line(each))
        return list(found.values())

    def _proved(self, asked: Sequence[Change], among: Sequence[Change]) -> list[Change]:
        if not asked:
            return []
        run = self._with([asked], among)[0]
        here = [each for each in asked if not run.changes.get(each.name)]
        apart = [_refused(each, run.changes[each.name]) for each in asked if each not in here]
        if not here:
            return apart
        if not self._fault(run, asked[0].kind):
            return [*apart, *(dataclasses.replace(each, proof=self._proof(each.kind)) for each in here)]
        if len(here) == 1:
            return [*apart, _refused(here[0], self._fault(run, here[0].kind))]
        for each, alone in zip(here, self._with([[each] for each in here], among), strict=True):
            fault = alone.changes.get(each.name) or self._fault(alone, each.kind)
            proved = dataclasses.replace(each, proof=self._proof(each.kind))
            apart.append(_refused(each, fault) if fault else proved)
        return apart

    def stack(self, values: Mapping[str, str], among: Sequence[Change]) -> tuple[str, str]:
        """Returns the kind of several changes together as it is found, and what speaks against them."""
        by_name = {each.name: each for each in among}
        run = self._runs([(environment(values, by_name, self._file), 0)])[0]
        if not equal(run, self._baseline):
            return EXACT, ""
        if any(by_name[name].kind == CLOSE for name in values):
            self._seeds = self._seeds or self._runs([({}, shift) for shift in OTHER_SEEDS])
            return CLOSE, close(run, self._baseline, self._seeds)
        return EXACT, equal(run, self._baseline)

    def _with(self, groups: Sequence[Sequence[Change]], among: Sequence[Change]) -> list[Recorded]:
        by_name = {each.name: each for each in among}
        choices = [{each.name: each.choices[0] for each in group} for group in groups]
        return self._runs([(environment(each, by_name, self._file), 0) for each in choices])

    def _fault(self, run: Recorded, kind: str) -> str:
        if run.failure:
            return run.failure
        if kind == EXACT:
            return equal(run, self._baseline)
        return close(run, self._baseline, [each for each in self._seeds if not each.failure])

    def _proof(self, kind: str) -> str:
        how = "equal in every bit" if kind == EXACT else "equal but for rounding"
        return f"{how} over {self.covers}"


def _refused(change: Change, why: str) -> Change:
    return dataclasses.replace(change, refused=why)


def _line(change: Change) -> str:
    name = f"{change.name} {change.choices[0]}"
    return f"  {name}: {change.proof}" if not change.refused else f"  {name}: left out, {change.refused}"
