"""Computes what a sweep decided, for the terminal, the page, Markdown, MLflow and JSON."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Literal

from sweeper.core.record import TrialRecord
from sweeper.results.formatting import per_second, seconds
from sweeper.results.numbers.confirmation import TIE, Ratio
from sweeper.results.numbers.summary import Summary
from sweeper.results.verdict.bottleneck import BottleneckVerdict, verdict_on

Kind = Literal["not measured", "confirmed", "unconfirmed", "undecided", "baseline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The baseline, or the trial to use instead of it.

    Attributes:
        throughput: Samples per second, over the confirmation rounds if there were any.
        epoch_seconds: Seconds per epoch at that throughput; None if the number of samples is unknown.
        hours: Duration of the production run at that throughput; None if none is configured.
        losses: Loss after the quality pass with each seed; empty if not measured.
        data_pct: Share of a step that goes to loading data.
        disturbance: What still disturbed its timings at the end; empty if nothing did.
    """

    record: TrialRecord
    throughput: float
    epoch_seconds: float | None
    hours: float | None
    losses: tuple[float, ...]
    data_pct: float | None
    disturbance: str

    @property
    def loss(self) -> float | None:
        """The mean loss over its seeds."""
        return statistics.fmean(self.losses) if self.losses else None

    @property
    def verdict(self) -> BottleneckVerdict | None:
        """The trial's bottleneck."""
        return verdict_on(self.record)

    @property
    def reported_by(self) -> str:
        """Who reported a script's speed; empty if the trainer measured it."""
        return self.record.measurement.reported_by if self.record.measurement else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The trial to use, and how certain that is.

    Attributes:
        kind: `confirmed`: `best` beats the baseline, by `ratio`. `unconfirmed`: `best` was faster in a
            single trial, or only in the processes by which it was found. `undecided`: confirmation could
            not tell whether the fastest, whose ratio is `ratio`, is faster than the baseline. `baseline`:
            nothing is better.
            `not measured`: there is no baseline to compare with.
        baseline: None if it was not measured.
        best: The trial to use; None if the baseline is best.
        ratio: Ratio to the baseline over the rounds; None without rounds.
        speedup: Speedup of `best` over the baseline: confirmed, else as searched.
        ties: Names of the trials that cannot be told apart from `best`, which is the simplest of them.
        break_even: Number of the fastest eager trial, and the optimiser step from which compiling
            pays off against it (infinite if never); None if `best` is eager.
    """

    kind: Kind
    baseline: Side | None = None
    best: Side | None = None
    ratio: Ratio | None = None
    speedup: float | None = None
    ties: tuple[str, ...] = ()
    break_even: tuple[int, float] | None = None

    @property
    def is_confirmed(self) -> bool:
        """Whether `best` was confirmed."""
        return self.kind == "confirmed"


def decide(summary: Summary) -> Decision:
    """Returns what a sweep has decided so far."""
    if summary.yardstick is None:
        return Decision(kind="not measured")
    baseline = _side(summary, summary.yardstick.baseline)
    if summary.winner is not None and summary.ratio is not None:
        kind: Kind = "unconfirmed" if summary.is_provisional else "confirmed"
        return _recommend(summary, kind, baseline, summary.winner)
    if summary.unconfirmed is not None:
        return _recommend(summary, "unconfirmed", baseline, summary.unconfirmed)
    if summary.undecided and math.log(summary.undecided.ratio) > TIE:
        return Decision(kind="undecided", baseline=baseline, ratio=summary.undecided)
    return Decision(kind="baseline", baseline=baseline)


def _recommend(summary: Summary, kind: Kind, baseline: Side, record: TrialRecord) -> Decision:
    best = _side(summary, record)
    ratio = summary.ratio if record is summary.winner else None
    searched = baseline.record.metric("throughput")
    speedup = ratio.ratio if ratio else best.throughput / searched if searched else None
    paid = summary.break_even(record)
    return Decision(
        kind=kind,
        baseline=baseline,
        best=best,
        ratio=ratio,
        speedup=speedup,
        ties=summary.ties if ratio else (),
        break_even=(paid[0].number, paid[1]) if paid else None,
    )


def _side(summary: Summary, record: TrialRecord) -> Side:
    return Side(
        record=record,
        throughput=summary.throughput_of(record),
        epoch_seconds=_drop_nan(summary.epoch_seconds(record)),
        hours=_drop_nan(summary.projected_hours(record)),
        losses=summary.losses_of(record),
        data_pct=record.metric("data_pct"),
        disturbance=summary.disturbance_of(record),
    )


def _drop_nan(value: float | None) -> float | None:
    # A measurement has NaN for a missing figure.
    return value if value is not None and math.isfinite(value) else None


def later_pace(side: Side, ratio: Ratio) -> str:
    """Returns the 95% interval of the winner's later speed on this machine; empty if it is unknown.

    It is in seconds per epoch, or in samples per second if the epoch's length is unknown.
    """
    if (
        ratio.throughput_low is None
        or ratio.throughput_high is None
        or not math.isfinite(ratio.throughput_high)
    ):
        return ""
    if side.epoch_seconds is None:
        return f"[{per_second(ratio.throughput_low)}, {per_second(ratio.throughput_high)}]"
    samples = side.epoch_seconds * side.throughput
    return f"[{seconds(samples / ratio.throughput_high)}, {seconds(samples / ratio.throughput_low)}]"
