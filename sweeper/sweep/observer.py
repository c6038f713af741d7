"""The protocol of observers: lines, finished trials and status for whoever watches a sweep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sweeper.core.record import TrialRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Where the sweep stands.

    Attributes:
        phase: `setting up`, `references`, `searching`, `confirming`.
        done: Searched trials (or rounds of confirmation) finished, out of `total`.
        best: Name of the best feasible trial so far, with `best_ratio` to the baseline.
        running: Names of what runs now.
        seconds_left: Of the time budget; None where there is none.
    """

    phase: str
    done: int
    total: int
    best: str
    best_ratio: float | None
    running: tuple[str, ...]
    seconds_left: float | None


class Observer(Protocol):
    """Watches a sweep."""

    def line(self, text: str) -> None:
        """Something a person should know, in one line."""

    def trial(self, record: TrialRecord, name: str, x_baseline: float | None) -> None:
        """A trial has ended."""

    def status(self, status: Status) -> None:
        """The sweep stands here now; called a few times a second."""


class Quiet:
    """Watches nothing."""

    def line(self, text: str) -> None:
        """Passes over it."""

    def trial(self, record: TrialRecord, name: str, x_baseline: float | None) -> None:
        """Passes over it."""

    def status(self, status: Status) -> None:
        """Passes over it."""
