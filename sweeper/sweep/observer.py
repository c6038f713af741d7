"""Defines the protocol of observers, which receive a sweep's lines, finished trials and status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sweeper.core.record import TrialRecord
from sweeper.race.scores import Score


@dataclass(frozen=True, slots=True)
class Racer:
    """A trial in a race, and how it stands."""

    name: str
    score: Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The current state of a sweep.

    Attributes:
        phase: `setting up`, `references`, `searching`, `confirming`.
        done: Number of finished parts (searched trials, or rounds of confirmation), out of `total`.
        best: Name of the best feasible trial so far; `best_ratio` is its ratio to the baseline.
        running: Names of the running trials.
        seconds_left: Seconds left of the time budget; None without one.
        race: The baseline and the candidates of the race that is run, the fastest first; empty if none is.
    """

    phase: str
    done: int
    total: int
    best: str
    best_ratio: float | None
    running: tuple[str, ...]
    seconds_left: float | None
    race: tuple[Racer, ...] = ()


class SweepObserver(Protocol):
    """Watches a sweep."""

    def line(self, text: str) -> None:
        """Receives a line for the user."""

    def trial(self, record: TrialRecord, name: str, speedup: float | None) -> None:
        """Receives a trial that has ended."""

    def status(self, status: Status) -> None:
        """Receives the current status, a few times per second."""


class QuietObserver:
    """Ignores everything."""

    def line(self, text: str) -> None:
        """Does nothing."""

    def command(self, text: str) -> None:
        """Does nothing."""

    def trial(self, record: TrialRecord, name: str, speedup: float | None) -> None:
        """Does nothing."""

    def status(self, status: Status) -> None:
        """Does nothing."""
