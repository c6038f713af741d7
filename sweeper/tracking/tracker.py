"""The seam between a sweep and whatever shows it: what a tracker is told, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from sweeper.core.record import TrialRecord

Stage = Literal["baseline", "reference", "search", "finalist", "confirmed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepInfo:
    """One sweep, as a reader of its experiment should see it.

    Attributes:
        name: The sweep's name, which the experiment takes.
        device: One line, such as `NVIDIA A10, 22.5 GiB`.
        fingerprint: Digest of the specification.
        pipeline: Module of the user's pipeline.
        data: One line on what the trials were trained with.
        synthetic: The data was generated, so that figures may not carry over to real data.
        varied: Dotted names that differ between trials: the searched ones, then those in which
            reference trials leave the space. They become the parameters and columns.
        note: Markdown of the sweep's own, such as the decision once there is one.
    """

    name: str
    device: str = ""
    fingerprint: str = ""
    pipeline: str = ""
    data: str = ""
    synthetic: bool = False
    varied: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """What the rounds of confirmation say about one configuration.

    Attributes:
        throughput: Samples per second over all rounds.
        ratio: Throughput over the baseline's, with its interval; None for the baseline itself.
        rounds: Samples per second of each round, in order. A later call may only add to its end.
    """

    throughput: float
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    rounds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """What a sweep knows about a trial beyond its record.

    Attributes:
        label: The run's name; what differs comes first, such as `007 bs2048 res bf16 h256`.
        stage: How far the trial has come.
        rank: 1 for the winner; None where it has no place.
        x_baseline: Throughput over the baseline's as searched; None until the baseline has one.
        verdict: Why it was slow, in a word or two.
        contamination: What disturbed its timings to the end; empty where they are clean.
        confirmation: None until there is one.
        note: Markdown for the person who opens the run.
    """

    label: str
    stage: Stage = "search"
    rank: int | None = None
    x_baseline: float | None = None
    verdict: str | None = None
    contamination: str = ""
    confirmation: Confirmation | None = None
    note: str = ""


class Tracker(Protocol):
    """Shows a sweep somewhere.

    It is a projection of the sweep folder: every call may be repeated, and none of them is read
    back. All three raise `StorageError` where the place cannot be reached; nothing is lost then, and
    the caller repeats the call when it likes.
    """

    def open(self, sweep: SweepInfo) -> None:
        """Makes the place where the sweep is shown, once, before the first trial."""

    def track(self, record: TrialRecord, view: RunView) -> None:
        """Shows `record`, or brings what is shown of it up to date; safe to repeat."""

    def close(self) -> None:
        """Lets go of connections."""


class NullTracker:
    """Shows nothing."""

    def open(self, sweep: SweepInfo) -> None:
        """Does nothing."""

    def track(self, record: TrialRecord, view: RunView) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""
