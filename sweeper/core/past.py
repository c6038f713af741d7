"""Defines the part of an earlier sweep of the same training that a new sweep keeps."""

from __future__ import annotations

from dataclasses import dataclass

from sweeper.core.config import TrialConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PastTrial:
    """A trial of an earlier sweep.

    Attributes:
        throughput: Samples per second; 0 if it was not measured.
        peak_gib: Peak memory on its device; None if that is not known.
        failure: The message of a failure that its configuration may have caused; empty for others.
    """

    number: int
    config: TrialConfig
    throughput: float = 0.0
    peak_gib: float | None = None
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastSweep:
    """An earlier sweep.

    Attributes:
        winner: The number of its winner; None without one.
        kind: Kind of the device that it ran on: `cpu` or `cuda`.
        differs: How the new sweep differs from it, in words.
    """

    name: str
    trials: tuple[PastTrial, ...]
    winner: int | None = None
    kind: str = ""
    differs: tuple[str, ...] = ()

    @property
    def measured(self) -> list[PastTrial]:
        """The trials that have a speed."""
        return [trial for trial in self.trials if trial.throughput > 0]
