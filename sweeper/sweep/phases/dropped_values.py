"""Finds values that leave the space: those that fail, that a model does not take, or that change nothing.

Every parameter keeps at least one choice. The result depends only on the trials that have ended and their
outcomes, not on their order, so a continued sweep decides the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sweeper.core.config import Scalar, TrialConfig
from sweeper.core.job import SEARCH_STAGE
from sweeper.core.measurement import FailureKind
from sweeper.core.record import BASELINE, TrialRecord
from sweeper.core.script import OBSERVED
from sweeper.schema import CategoricalParameter, Parameter, SweepSpec
from sweeper.schema.space import acts

FAILURES = 2
"""Number of failures with the same message and a common choice that put the choice at fault."""

KINDS = frozenset(
    {
        FailureKind.UNSUPPORTED,
        FailureKind.COMPILE_ERROR,
        FailureKind.CRASH,
        FailureKind.USER_ERROR,
        FailureKind.NO_RESULT,
    }
)
"""Failures that a single choice can cause, unlike those of memory, time and the machine."""

OF_MODEL = frozenset({"activation_checkpointing", "compile.regional", "memory_format", "precision.amp"})
"""Parameters whose values a model accepts or refuses, whatever the other parameters are."""

Choice = tuple[str, Scalar]
"""A parameter and one of its values."""

Left = Mapping[str, Mapping[Scalar, str]]
"""Choices that leave the space, by parameter, each with the reason."""

Space = Mapping[str, Parameter]


def choices_of(config: TrialConfig, space: Space) -> Iterator[Choice]:
    """Yields the choices of `space` that have an effect in `config`."""
    flat = config.flatten()
    for name, parameter in space.items():
        if isinstance(parameter, CategoricalParameter) and name in flat:
            value = flat[name]
            if parameter.contains(value) and acts(name, space, flat):
                yield name, parameter.like(value)


def _may_go(choice: Choice, space: Space, *left: Left) -> bool:
    """Returns whether its parameter keeps another choice, beside those that have left."""
    name, value = choice
    parameter = space[name]
    assert isinstance(parameter, CategoricalParameter)
    gone = {value}.union(*(one.get(name, ()) for one in left))
    return any(other not in gone for other in parameter.choices)


@dataclass(frozen=True, slots=True)
class _FailedTrial:
    number: int
    how: tuple[str, str]
    message: str
    choices: frozenset[Choice]


class FailingValues:
    """The choices that ran, and the failures that they cannot explain.

    A choice is at fault if two trials failed with it in the same way and no trial has run with it.
    """

    def __init__(self, space: Space, passed: Iterable[Choice] = ()) -> None:
        """Starts without trials.

        Args:
            space: The space that is searched.
            passed: Choices that ran in the preflight. They are not at fault if another choice could be.
        """
        self._space, self._passed = space, frozenset(passed)
        self._ran: set[Choice] = set()
        self._failed: dict[int, _FailedTrial] = {}
        self._left: dict[str, dict[Scalar, str]] | None = {}

    def add(self, record: TrialRecord) -> None:
        """Adds a trial that has ended.

        A reference that failed is no evidence: it may have values outside the space.
        """
        failure = record.failure
        if record.measurement is not None:
            choices = set(choices_of(record.config, self._space))
            if not choices <= self._ran:
                self._ran |= choices
                self._left = None
        elif failure is not None and failure.kind in KINDS and record.stage == SEARCH_STAGE:
            self._failed[record.number] = _FailedTrial(
                record.number,
                (failure.kind, without_numbers(failure.message)),
                failure.message,
                frozenset(choices_of(record.config, self._space)),
            )
            self._left = None

    def choices_to_drop(self) -> Left:
        """Returns the choices that leave the space, each with the message of its failures.

        If several choices could be at fault, the one with the most failures is; of several such choices, the
        only one that did not run in the preflight; otherwise none is at fault yet.
        """
        if self._left is None:
            self._left = {}
            self._failed = {
                n: failure for n, failure in self._failed.items() if not failure.choices <= self._ran
            }
            failed = [failure for _, failure in sorted(self._failed.items())]
            while (fault := self._find_culprit(failed, self._left)) is not None:
                (name, value), message = fault
                self._left.setdefault(name, {})[value] = message
                # Failures that it explains are no evidence about other choices.
                failed = [failure for failure in failed if (name, value) not in failure.choices]
        return self._left

    def explains(self, config: TrialConfig) -> bool:
        """Returns whether `config` has a choice that left the space."""
        left = self.choices_to_drop()
        return any(value in left.get(name, ()) for name, value in choices_of(config, self._space))

    def _find_culprit(self, failed: list[_FailedTrial], left: Left) -> tuple[Choice, str] | None:
        for how in dict.fromkeys(failure.how for failure in failed):
            alike = [failure for failure in failed if failure.how == how]
            possible = (choice for one in alike for choice in one.choices - self._ran)
            counts = Counter(choice for choice in possible if _may_go(choice, self._space, left))
            max_count = max(counts.values(), default=0)
            if max_count < FAILURES:
                continue
            suspects = [choice for choice, n in counts.items() if n == max_count]
            if len(suspects) > 1:
                suspects = [choice for choice in suspects if choice not in self._passed]
            if len(suspects) == 1:
                return suspects[0], next(e.message for e in alike if suspects[0] in e.choices)
        return None


def without_numbers(error: str) -> str:
    """Returns `error` without numbers that differ from case to case: addresses, sizes, times."""
    return re.sub(r"0x[0-9a-fA-F]+|\d+([.,_:]\d+)*", "#", error)


class RefusedValues:
    """The choices that the models of trials took, and those that they did not take."""

    def __init__(self, space: Space) -> None:
        """Starts without trials.

        Args:
            space: The space that is searched. With several models, one may accept what another refuses.
        """
        is_one_model = not any(name.startswith("model.") for name in space)
        self._space, self._names = space, OF_MODEL & space.keys() if is_one_model else frozenset()
        self._applied: set[Choice] = set()
        self._refused: dict[Choice, tuple[int, str]] = {}

    def add(self, record: TrialRecord) -> None:
        """Adds a trial that has ended."""
        if record.measurement is None or not self._names:
            return
        notes = record.measurement.effective
        for choice in choices_of(record.config, self._space):
            name, _ = choice
            if name == "compile.regional" and not record.config.compile.uses_compiler:
                # Nothing is compiled.
                continue
            if name in self._names and name in notes:
                ran, _, why = notes[name].partition(": ")
                first = min(self._refused.get(choice, (record.number,))[0], record.number)
                self._refused[choice] = first, why or ran
            elif name in self._names:
                self._applied.add(choice)

    def choices_to_drop(self, gone: Left) -> Left:
        """Returns the choices that leave the space, beside those that are `gone` for another reason."""
        left: dict[str, dict[Scalar, str]] = {}
        for choice, (_, why) in sorted(self._refused.items(), key=lambda item: item[1]):
            if choice not in self._applied and _may_go(choice, self._space, left, gone):
                name, value = choice
                left.setdefault(name, {})[value] = why
        return left


def idle_values(records: Iterable[TrialRecord], spec: SweepSpec, gone: Left | None = None) -> Left:
    """Returns the choices of a script's space without effect, beside those that are `gone` already.

    torch reports the settings that a training uses. If they are the baseline's in every trial with another
    value of a flag, that has no effect on this device, or the script does not read it.
    """
    trials = [record for record in records if record.measurement is not None]
    base = next((record for record in trials if record.number == BASELINE), None)
    if base is None or base.measurement is None:
        return {}
    base_values, seen = base.config.flatten(), base.measurement.observed
    effects: dict[Choice, list[bool]] = {}
    for record in trials:
        assert record.measurement is not None
        for name, value in choices_of(record.config, spec.space):
            fact = OBSERVED.get(name, "")
            others = [other for other in base_values if other != name and OBSERVED.get(other) == fact]
            # If two parameters set the same fact, it does not show the effect of one of them.
            if value != base_values.get(name) and seen.get(fact) is not None and not others:
                effects.setdefault((name, value), []).append(
                    record.measurement.observed.get(fact) != seen[fact]
                )
    left: dict[str, dict[Scalar, str]] = {}
    for (name, value), had_effect in effects.items():
        if not any(had_effect) and _may_go((name, value), spec.space, left, gone or {}):
            left.setdefault(name, {})[value] = f"the training is the same as with {base_values.get(name)}"
    return left


def without_idle(records: Sequence[TrialRecord], spec: SweepSpec) -> list[TrialRecord]:
    """Returns the trials, without those that differ from a measured one only in values without effect."""
    idle = idle_values(records, spec)
    keys = {record.config.key() for record in records if record.measurement is not None}
    baseline = spec.baseline_config().flatten()
    trials = []
    for record in records:
        same = [name for name, value in choices_of(record.config, spec.space) if value in idle.get(name, ())]
        plain = record.config.replace({name: baseline[name] for name in same})
        if not same or plain.key() not in keys:
            trials.append(record)
    return trials
