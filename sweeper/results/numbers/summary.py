"""Defines the summary of a sweep, and how it is printed as JSON."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sweeper.core.codec import encode
from sweeper.core.metrics import REPORTED_DIGITS, metric_row, round_to
from sweeper.core.place import TrialPlace
from sweeper.core.record import TrialRecord
from sweeper.core.workload import is_reported
from sweeper.results.numbers.confirmation import Ratio
from sweeper.results.numbers.labels import run_name
from sweeper.results.numbers.limits import Yardstick
from sweeper.results.numbers.pareto import Rule
from sweeper.results.numbers.projection import break_even_steps, eager_rival, projected_hours
from sweeper.results.numbers.time_to_loss import TimeToLoss
from sweeper.results.verdict.bottleneck import verdict_on


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One trial in a table of the summary.

    Attributes:
        title: What this is the best of.
        name: The trial's run name.
        speedup: Ratio to the baseline: confirmed, else as searched; `throughput` likewise.
        loss: Its mean loss over seeds; None if not measured.
        confirmed: Whether they are confirmed.
        disturbed: Whether they were still disturbed at the end.
        is_one_seed: Whether its loss is of one seed, and the baseline's is a mean over several.
    """

    title: str
    name: str
    record: TrialRecord
    speedup: float | None
    throughput: float
    loss: float | None = None
    confirmed: bool = False
    disturbed: bool = False
    is_one_seed: bool = False

    @property
    def epoch_seconds(self) -> float | None:
        """Time of one pass over the training samples at that throughput."""
        measured = self.record.measurement
        samples = measured.train_samples if measured else 0
        return samples / self.throughput if samples and self.throughput else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The results of a sweep, finished or not.

    Attributes:
        state: `finished`, `stopped` (what is known is the best so far), or `unfinished`.
        winner: None if nothing is better than the baseline, or nothing was confirmed.
        is_tune: Whether its trials are changes to a script.
        is_verified: Whether the winner was verified to train the same, so that no loss is asked for.
        ratio: The winner's confirmed ratio; None if it is not confirmed.
        is_provisional: Whether that ratio is of the processes by which the winner was found, and no others.
        unconfirmed: Before confirmation, the fastest feasible trial of the baseline's size; None if it
            is no faster than the baseline.
        undecided: Without a winner, the ratio of the fastest trial in confirmation.
        ties: Names of the trials that cannot be told apart from the winner.
        baseline_throughput: The baseline's throughput over the confirmation rounds.
        reason: Why the search ended.
        per_size: The fastest feasible trial of each model size.
        per_loader: The fastest feasible trial of each loader kind, of the baseline's size.
        counts: Trials by outcome.
        disturbances: Number of confirmation runs that stayed disturbed, by trial number.
        objectives: Names of the objectives; with several, `front` has the trials that none beats.
        picked: The trial that `rule` picks from the front.
        varied: The names that differ between its trials.
        infeasible: Names of the trials that were faster, but beyond a limit in confirmation.
        unknown_metrics: Metrics of its objectives and constraints that cannot be imported here.
        time_to_loss: How much sooner the winner reaches the baseline's loss; None if that was not measured.
        unreached_loss: The baseline's loss, if the winner does not reach it within three times the samples.
        price_per_hour: Of one device; None if unknown.
        losses: Losses by trial number, one per seed, of the trials that were trained with several.
    """

    name: str
    state: str
    device: str
    reason: str
    synthetic: bool
    yardstick: Yardstick | None
    winner: TrialRecord | None
    ratio: Ratio | None
    baseline_throughput: float | None
    per_size: tuple[Row, ...]
    per_loader: tuple[Row, ...]
    counts: Mapping[str, int]
    production_samples: float | None
    records: tuple[TrialRecord, ...]
    is_tune: bool = False
    is_verified: bool = False
    is_provisional: bool = False
    unconfirmed: TrialRecord | None = None
    undecided: Ratio | None = None
    ties: tuple[str, ...] = ()
    disturbances: Mapping[int, int] = field(default_factory=dict)
    objectives: tuple[str, ...] = ()
    front: tuple[Row, ...] = ()
    picked: TrialRecord | None = None
    rule: Rule = "knee"
    varied: tuple[str, ...] = ()
    infeasible: tuple[str, ...] = ()
    unknown_metrics: tuple[str, ...] = ()
    time_to_loss: TimeToLoss | None = None
    unreached_loss: float | None = None
    price_per_hour: float | None = None
    losses: Mapping[int, tuple[float, ...]] = field(default_factory=dict)

    def name_of(self, record: TrialRecord) -> str:
        """Returns a record's run name."""
        return run_name(record.number, record.stage, record.config, self.varied)

    def ratio_of(self, record: TrialRecord) -> Ratio | None:
        """Returns the winner's confirmed ratio; None for any other record."""
        return self.ratio if self.winner is not None and record.number == self.winner.number else None

    def disturbance_of(self, record: TrialRecord) -> str:
        """Returns what disturbed the figures shown for a record; empty if nothing did."""
        if self.ratio is not None and record.number in self.disturbances:
            count = self.disturbances[record.number]
            return f"{count} of {len(self.ratio.rounds)} confirmation runs" if count else ""
        return ", ".join(record.measurement.contamination) if record.measurement else ""

    def throughput_of(self, record: TrialRecord) -> float:
        """Returns the winner's and the baseline's confirmed throughput, any other's as searched."""
        if self.ratio is not None and record.number == self.ratio.trial:
            return self.ratio.throughput
        if self.yardstick and record.number == self.yardstick.baseline.number and self.baseline_throughput:
            return self.baseline_throughput
        return record.metric("throughput") or 0.0

    def epoch_seconds(self, record: TrialRecord) -> float | None:
        """Returns the seconds of one pass over the training samples, at `throughput_of`."""
        throughput, measured = self.throughput_of(record), record.measurement
        samples = measured.train_samples if measured else 0
        return samples / throughput if samples and throughput else None

    def projected_hours(self, record: TrialRecord) -> float | None:
        """Returns the hours of the production run, at `throughput_of`."""
        measured, throughput = record.measurement, self.throughput_of(record)
        if measured is None or self.production_samples is None or not throughput:
            return None
        samples = self.production_samples
        if self.time_to_loss is not None and self.winner is not None and record.number == self.winner.number:
            # With these, the winner reaches the loss that the baseline reaches.
            samples /= self.time_to_loss.samples_ratio
        return projected_hours(measured, samples, throughput)

    def losses_of(self, record: TrialRecord) -> tuple[float, ...]:
        """Returns a record's loss with each seed; empty if none was measured."""
        loss = record.metric("val_loss")
        return self.losses.get(record.number, () if loss is None else (loss,))

    def value_of(self, record: TrialRecord, name: str) -> float | None:
        """Returns a metric of a record, at `throughput_of` and over all seeds; None if unknown."""
        if name == "throughput":
            return self.throughput_of(record) or None
        if name == "val_loss":
            losses = self.losses_of(record)
            return statistics.fmean(losses) if losses else None
        of = {"epoch_seconds": self.epoch_seconds, "projected_hours": self.projected_hours}.get(name)
        value = of(record) if of else record.metric(name)
        return value if value is not None and math.isfinite(value) else None

    def cost(self, record: TrialRecord) -> float | None:
        """Returns the price of the production run, at `throughput_of`."""
        hours = self.projected_hours(record)
        if hours is None or self.price_per_hour is None:
            return None
        return hours * self.price_per_hour * record.config.device.count

    def break_even(self, record: TrialRecord) -> tuple[TrialRecord, float] | None:
        """Returns the eager rival, and the optimiser step from which compiling pays off.

        Both as searched, under the same conditions. None if nothing was compiled or nothing is
        eager.
        """
        rival = eager_rival(record, self.records)
        steps = break_even_steps(rival, record) if rival is not None else None
        return (rival, steps) if rival is not None and steps is not None else None


def metrics_of(record: TrialRecord) -> dict[str, float]:
    """Returns the metrics of a record, rounded to meaningful digits."""
    reported = record.pipeline_metrics
    return {
        name: round_to(value, REPORTED_DIGITS if name in reported else metric_row(name).digits)
        for name, value in record.metrics.items()
    }


def trial_json(record: TrialRecord, stage: str) -> dict[str, Any]:
    """Returns a trial as `sweeper show --json` prints it."""
    return {
        "number": record.number,
        "outcome": "running" if record.outcome is None else _outcome(record),
        "feasible": record.feasible,
        **_verdict(record),
        "stage": stage,
        **({"origin": record.origin} if record.origin else {}),
        **({"place": encode(record.place)} if record.place != TrialPlace() else {}),
        "config": record.config.canonical().flatten(),
        "metrics": metrics_of(record),
        "notes": dict(record.notes),
        **_of_script(record),
    }


def _of_script(record: TrialRecord) -> dict[str, Any]:
    measurement = record.measurement
    return (
        {"reported_by": measurement.reported_by, "exclusions": list(measurement.exclusions)}
        if measurement and is_reported(measurement)
        else {}
    )


def _verdict(record: TrialRecord) -> dict[str, Any]:
    verdict = verdict_on(record)
    if verdict is None or record.measurement is None:
        return {"verdict": None}
    return {
        "verdict": verdict.kind.value,
        "why": verdict.why,
        "next": verdict.next,
        "next_changes": dict(verdict.changes),
        "contamination": list(record.measurement.contamination),
    }


def _outcome(record: TrialRecord) -> str:
    return str(record.failure.kind) if record.failure else "measured"


def to_json(summary: Summary, stages: Mapping[int, str]) -> dict[str, Any]:
    """Returns the summary as `sweeper show NAME --json` prints it."""

    def trial(record: TrialRecord | None) -> dict[str, Any] | None:
        if record is None:
            return None
        return {
            "number": record.number,
            "config": record.config.canonical().flatten(),
            "metrics": metrics_of(record),
            "notes": dict(record.notes),
        }

    winner = trial(summary.winner)
    if winner is not None and summary.ratio is not None:
        winner |= {
            "ratio": round_to(summary.ratio.ratio, 4),
            "ratio_low": round_to(summary.ratio.low, 4),
            "ratio_high": round_to(summary.ratio.high, 4),
            **{
                name: round_to(value, 4)
                for name, value in (
                    ("ratio_sitting_low", summary.ratio.sitting_low),
                    ("ratio_sitting_high", summary.ratio.sitting_high),
                    ("throughput_low", summary.ratio.throughput_low),
                    ("throughput_high", summary.ratio.throughput_high),
                )
                if value is not None
            },
        }
    if winner is not None and summary.winner is not None and (paid := summary.break_even(summary.winner)):
        winner["break_even_steps"] = paid[1]
    if winner is not None and summary.unreached_loss is not None:
        winner["unreached_loss"] = round_to(summary.unreached_loss, 4)
    if winner is not None and summary.time_to_loss is not None:
        winner["time_to_loss"] = {
            name: round_to(getattr(summary.time_to_loss, name), 4)
            for name in ("loss", "ratio", "low", "high")
        }
    return {
        "name": summary.name,
        "state": summary.state,
        "device": summary.device,
        "baseline": trial(summary.yardstick.baseline if summary.yardstick else None),
        "winner": winner,
        **_front(summary),
        "trials": [trial_json(record, stages.get(record.number, record.stage)) for record in summary.records],
    }


def _front(summary: Summary) -> dict[str, Any]:
    if len(summary.objectives) < 2:
        return {}
    return {
        "front": [row.record.number for row in summary.front],
        "picked": summary.picked.number if summary.picked else None,
        "rule": summary.rule,
    }
