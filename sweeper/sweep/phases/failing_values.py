"""Finds values that fail in every trial, so that they can leave the space.

A choice is at fault if two trials failed with it in the same way and no trial has run with it. The
result depends only on the trials that have ended and their outcomes, so a continued sweep decides the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from sweeper.core.config import Scalar, TrialConfig
from sweeper.core.measurement import FailureKind
from sweeper.core.record import TrialRecord
from sweeper.spec import CategoricalParameter, Parameter
from sweeper.spec.space import acts

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

Choice = tuple[str, Scalar]
"""A parameter and one of its values."""

Space = Mapping[str, Parameter]


@dataclass(frozen=True, slots=True)
class _Failed:
    number: int
    how: tuple[str, str]
    message: str
    choices: frozenset[Choice]


class FailingValues:
    """The choices that ran, and the failures that they cannot explain."""

    def __init__(self, space: Space, passed: Iterable[Choice] = ()) -> None:
        """Starts without trials.

        Args:
            space: The space that is searched.
            passed: Choices that ran in the preflight. They are not at fault if another choice could be.
        """
        self._space, self._passed = space, frozenset(passed)
        self._ran: set[Choice] = set()
        self._failed: dict[int, _Failed] = {}
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
        elif failure is not None and failure.kind in KINDS and record.stage == "search":
            self._failed[record.number] = _Failed(
                record.number,
                (failure.kind, without_numbers(failure.message)),
                failure.message,
                frozenset(choices_of(record.config, self._space)),
            )
            self._left = None

    def left(self) -> Mapping[str, Mapping[Scalar, str]]:
        """Returns the choices that leave the space, by parameter, each with the message of its failures.

        Every parameter keeps at least one choice. If several choices could be at fault, the one with the most
        failures is; of several such choices, the only one that did not run in the preflight; otherwise none
        is at fault yet.
        """
        if self._left is None:
            self._left = {}
            self._failed = {n: each for n, each in self._failed.items() if not each.choices <= self._ran}
            failed = [each for _, each in sorted(self._failed.items())]
            while (found := self._at_fault(failed, self._left)) is not None:
                (name, value), message = found
                self._left.setdefault(name, {})[value] = message
                # Failures that it explains are no evidence about other choices.
                failed = [each for each in failed if (name, value) not in each.choices]
        return self._left

    def explains(self, config: TrialConfig) -> bool:
        """Returns whether `config` has a choice that left the space."""
        left = self.left()
        return any(value in left.get(name, ()) for name, value in choices_of(config, self._space))

    def _at_fault(
        self, failed: list[_Failed], left: Mapping[str, Mapping[Scalar, str]]
    ) -> tuple[Choice, str] | None:
        for how in dict.fromkeys(each.how for each in failed):
            alike = [each for each in failed if each.how == how]
            counts = Counter(choice for each in alike for choice in each.choices)
            most = max((n for choice, n in counts.items() if self._may_leave(choice, left)), default=0)
            if most < FAILURES:
                continue
            suspects = [c for c, n in counts.items() if n == most and self._may_leave(c, left)]
            if len(suspects) > 1:
                suspects = [choice for choice in suspects if choice not in self._passed]
            if len(suspects) == 1:
                return suspects[0], next(e.message for e in alike if suspects[0] in e.choices)
        return None

    def _may_leave(self, choice: Choice, left: Mapping[str, Mapping[Scalar, str]]) -> bool:
        name, _ = choice
        parameter = self._space[name]
        assert isinstance(parameter, CategoricalParameter)
        return choice not in self._ran and len(parameter.choices) - len(left.get(name, ())) > 1


def choices_of(config: TrialConfig, space: Space) -> Iterator[Choice]:
    """Yields the choices of `space` that have an effect in `config`."""
    flat = config.flatten()
    for name, parameter in space.items():
        if isinstance(parameter, CategoricalParameter) and name in flat:
            value = flat[name]
            if parameter.contains(value) and acts(name, space, flat):
                yield name, parameter.like(value)


def without_numbers(error: str) -> str:
    """Returns `error` without numbers that differ from case to case: addresses, sizes, times."""
    return re.sub(r"0x[0-9a-fA-F]+|\d+([.,_:]\d+)*", "#", error)
