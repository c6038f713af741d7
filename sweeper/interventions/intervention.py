"""What each change to a script declares."""

from __future__ import annotations

from typing import Any, Protocol

EXACT, CLOSE = "exact", "close"
"""Kinds: equal in every bit; or equal but for rounding. What is declared is proved before it is used."""


class Report(Protocol):
    """Is told whether a change is in effect, and the reason where it is not."""

    def __call__(self, is_applied: bool, why: str = "", /) -> None:
        """Says that it is, or why it is not."""


class Intervention:
    """A change that can be made to any script.

    Attributes:
        name: Of its parameter.
        choices: Its values, without the one that leaves the script as it is.
        kind: What it does to the training.
        why: One line for the report: what it saves.
    """

    name: str
    choices: tuple[str, ...]
    kind: str
    why: str

    def apply(self, torch: Any, value: str, report: Report) -> None:
        """Makes the change in this process; `report` is called once it is known to be in effect or not."""
        raise NotImplementedError
