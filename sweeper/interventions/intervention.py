"""Defines the protocol of changes to a script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

EXACT, CLOSE = "exact", "close"
"""Kinds of changes: equal in every bit, or except for rounding. Each change is proved before it is used."""

DRAWS = "other draws"
"""Kind that changes only the random numbers, as another seed would; tried only on request."""

CHANGES_TRAINING = "changes training"
"""Kind that no proof can show to be harmless; tried only on request, within a limit on the loss."""

SINGLE, HALF = 1e-3, 0.08
"""Relative differences of early gradients that the rounding of 32-bit and of 16-bit floats explains."""


class RefusedError(Exception):
    """Raised if a change is not made to a loader or a model; its text says why."""


def why_not(error: Exception) -> str:
    """Returns why a change is not made: the text of a refusal, or an error that nobody foresaw."""
    return str(error) if isinstance(error, RefusedError) else f"{type(error).__name__}: {error}"[:300]


class Report(Protocol):
    """Callback that receives whether a change is in effect and, if it is not, the reason."""

    def __call__(self, is_applied: bool, why: str = "", /, *, was_applied: bool = False) -> None:
        """Reports that the change is in effect, or why it is not, or no longer."""


class Intervention:
    """A change that can be made to any script.

    Attributes:
        name: Name of its parameter.
        choices: Its values, without the one that leaves the script as it is.
        are_ranked: Whether a value is tried only if none before it is possible.
        kind: Kind of its effect on the training.
        why: One line for the report on what it saves.
        rounding: Relative difference that it may make in the first steps.
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
