"""Defines the protocol of trackers, and the data of a sweep that they show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from sweeper.core.record import TrialRecord
from sweeper.errors import StorageError

Stage = Literal["baseline", "reference", "search", "candidate", "winner"]


class RejectedError(StorageError):
    """The tracker was reached and rejects this item; it may accept others."""


class TrackerRefusedError(StorageError):
    """The tracker was reached and accepts nothing until the user has acted."""


class DeletedError(TrackerRefusedError):
    """The user deleted the sweep's experiment; other sweeps are not affected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The data that trials are trained on.

    Attributes:
        name: A display name.
        digest: Equal for equal data; at most 36 characters.
        source: Where it comes from: a path, or how it was made.
    """

    name: str
    digest: str
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepInfo:
    """One sweep, as a reader of its experiment should see it.

    Attributes:
        name: The sweep's name, which is also the experiment's.
        device: One line, such as `NVIDIA A10, 22.5 GiB`.
        fingerprint: Digest of the specification.
        pipeline: Module of the user's pipeline.
        data: One line on the data that trials are trained on.
        synthetic: Whether the data was generated, so that figures may not carry over to real data.
        varied: Dotted names that differ between trials: the searched ones, then those in which
            reference trials leave the space. They become the parameters and columns.
        searched: Those of `varied` that are searched; empty for all of them.
        is_recorded: Whether the losses of its trials' first steps are recorded, as in a tune.
        metrics: Names of the metrics that some trial has, as far as known; they become columns.
        dataset: The data that trials are trained on; None if unknown.
        provenance: Tags that every run of the sweep gets, such as versions and the commit.
        note: Markdown about the sweep, such as the decision once there is one.
    """

    name: str
    device: str = ""
    fingerprint: str = ""
    pipeline: str = ""
    data: str = ""
    synthetic: bool = False
    varied: tuple[str, ...] = ()
    searched: tuple[str, ...] = ()
    is_recorded: bool = False
    metrics: tuple[str, ...] = ()
    dataset: Dataset | None = None
    provenance: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """The result of the confirmation rounds for one configuration.

    Attributes:
        throughput: Samples per second over all rounds.
        ratio: Throughput over the baseline's, with its interval; None for the baseline itself.
        rounds: Samples per second of each round, in order. A later call may only append.
        turns: Of each turn, in order: seconds from its end to that of the race, and samples per second.
    """

    throughput: float
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    rounds: tuple[float, ...] = ()
    turns: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """The sweep's knowledge of a trial beyond its record.

    Attributes:
        label: The run's name, such as `007 bs2048 res bf16 h256`; what differs between runs comes first.
        stage: How far the trial has come.
        rank: 1 for the winner; None if it is not ranked.
        speedup: Throughput over the baseline's as searched; None until the baseline has one.
        verdict: Why it was slow, in a word or two.
        contamination: What still disturbed its timings after repeats; empty if they are clean.
        confirmation: None until there is one.
        confirmed_at: Wall time at which the confirmation ended, in seconds; 0 if there is none.
        note: Markdown for readers of the run.
        files: Paths of further files that belong to the run, such as a report.
    """

    label: str
    stage: Stage = "search"
    rank: int | None = None
    speedup: float | None = None
    verdict: str | None = None
    contamination: str = ""
    confirmation: Confirmation | None = None
    confirmed_at: float = 0.0
    note: str = ""
    files: tuple[str, ...] = ()


class Tracker(Protocol):
    """Shows a sweep somewhere.

    A tracker is a projection of the sweep folder: every call may be repeated, and nothing is read
    back. All calls raise `StorageError` if the place cannot be reached; nothing is lost then, and
    the caller may repeat the call at any time.
    """

    @property
    def place(self) -> str:
        """The address that shows the sweep; empty for the default. Holds no secret."""

    def open(self, sweep: SweepInfo) -> None:
        """Creates or updates the place where the sweep is shown, before the first trial."""

    def track(self, record: TrialRecord, view: RunView) -> None:
        """Shows or updates `record`; safe to repeat."""

    def close(self) -> None:
        """Closes connections."""


class NullTracker:
    """Shows nothing."""

    place = ""

    def open(self, sweep: SweepInfo) -> None:
        """Does nothing."""

    def track(self, record: TrialRecord, view: RunView) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""
