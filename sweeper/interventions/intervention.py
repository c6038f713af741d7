"""The protocol of changes to a script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

EXACT, CLOSE = "exact", "close"
"""Kinds: equal in every bit, or equal except for rounding. Each change is proved before it is used."""

DRAWS = "other draws"
"""A kind: the same training with other random numbers, as with another seed; tried only if asked for."""

CHANGES_TRAINING = "changes training"
"""A kind that no proof can show to be harmless: it is tried only if asked for, within a limit on the loss."""

SINGLE, HALF = 1e-3, 0.08
"""Relative differences of early gradients that rounding explains: of floats of 32 and 16 bits."""


class RefusedError(Exception):
    """A change is not made to a loader or a model; its text says why."""


class Report(Protocol):
    """Is told whether a change is in effect, and the reason where it is not."""

    def __call__(self, is_applied: bool, why: str = "", /) -> None:
        """Says that it is, or why it is not."""


class Intervention:
    """A change that can be made to any script.

    Attributes:
        name: Of its parameter.
        choices: Its values, without the one that leaves the script as it is.
        are_ranked: Whether a value is tried only where none before it is possible.
        kind: What it does to the training.
        why: One line for the report: what it saves.
        rounding: Relative difference in the first steps that a change of this kind may make.
    """

    name: str
    choices: tuple[str, ...]
    kind: str
    why: str
    rounding: float = SINGLE
    are_ranked: bool = False

    def refusal(self, value: str, observed: Mapping[str, Any]) -> str:
        """Returns why a value is not tried for a training; empty if it is.

        Args:
            observed: What the training uses (`sweeper.inject.facts`).
        """
        return ""

    def apply(self, torch: Any, value: str, report: Report) -> None:
        """Makes the change in this process; `report` is called once it is known to be in effect or not."""
        raise NotImplementedError
