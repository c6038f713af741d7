"""Compares two sweeps: their baselines, their winners and the trials that both measured."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sweeper.core.config import Scalar, TrialConfig
from sweeper.core.record import TrialRecord
from sweeper.race.tally import Variance, trimmed_mean, trimmed_variance
from sweeper.results import words
from sweeper.results.numbers.decision import decide
from sweeper.results.numbers.labels import run_name
from sweeper.results.numbers.summary import Summary

How = Literal["confirmed", "unconfirmed", "baseline"]
Answer = Literal["slower", "not slower", "not decided"]

MAX_MOVED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSide:
    """One of the two sweeps.

    Attributes:
        rounds: Samples per second by trial number, for each confirmation round.
        varied: The names that differ between its trials.
        fingerprint: What identifies the sweep (`sweep.yaml`).
    """

    summary: Summary
    rounds: Sequence[Mapping[int, float]]
    varied: Collection[str]
    fingerprint: Mapping[str, Any]

    @property
    def baseline(self) -> TrialRecord | None:
        """The user's own starting point, if it was measured."""
        return self.summary.yardstick.baseline if self.summary.yardstick else None

    @property
    def best(self) -> tuple[TrialRecord, How] | None:
        """The trial that this sweep recommends: its winner, its fastest single trial, or the baseline."""
        decision = decide(self.summary)
        if decision.best is not None:
            return decision.best.record, "confirmed" if decision.is_confirmed else "unconfirmed"
        return (decision.baseline.record, "baseline") if decision.baseline is not None else None

    def speeds_of(self, record: TrialRecord) -> list[float]:
        """Returns a trial's samples per second in each confirmation round with it."""
        return [speeds[record.number] for speeds in self.rounds if record.number in speeds]

    def gains_of(self, record: TrialRecord) -> list[float]:
        """Returns a trial's speed over the baseline's, for each round with both."""
        if self.baseline is None or record.number == self.baseline.number:
            return []
        both = {record.number, self.baseline.number}
        shared = [speeds for speeds in self.rounds if both <= speeds.keys()]
        return [speeds[record.number] / speeds[self.baseline.number] for speeds in shared]

    def name_of(self, record: TrialRecord) -> str:
        """Returns a record's run name."""
        return run_name(record.number, record.stage, record.config, self.varied)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRatio:
    """B over A in samples per second.

    Attributes:
        low: Lower end of the 95% interval, `high` the upper one; None if one of the two was
            measured in fewer than two confirmation rounds.
        epoch_ratio: B over A in seconds per epoch; None if the epoch length is unknown.
    """

    ratio: float
    low: float | None = None
    high: float | None = None
    epoch_ratio: float | None = None

    def of_epochs(self) -> SpeedRatio | None:
        """Returns the same in seconds per epoch, if known."""
        if self.epoch_ratio is None:
            return None
        samples = self.epoch_ratio * self.ratio
        return SpeedRatio(
            ratio=self.epoch_ratio,
            low=samples / self.high if self.high else None,
            high=samples / self.low if self.low else None,
        )

    def is_slower(self, share: float) -> Answer:
        """Returns whether B is slower by more than `share` of A's speed, judged by the whole interval."""
        bound = 1 - share
        if self.low is None or self.high is None:
            return "not decided"
        return "slower" if self.high < bound else "not slower" if self.low >= bound else "not decided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A configuration that both sweeps measured, and its throughput in B over that in A, as searched."""

    a: TrialRecord
    b: TrialRecord
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The comparison of two sweeps.

    Attributes:
        baseline: The baselines' speeds; None if one was not measured. `winner` likewise.
        gain: B over A in the winner's confirmed ratio to its baseline, in which changes that affect both
            trials cancel out. None if one is missing.
        configuration: The differences between the winners: name -> (A's, B's), None for an absent
            name.
        searched: Those of these names that both sweeps searched.
        pairs: Trials of the same configuration, largest change first.
        unfair: Why the figures do not compare like with like, one sentence each.
    """

    a: SweepSide
    b: SweepSide
    baseline: SpeedRatio | None
    winner: SpeedRatio | None
    gain: SpeedRatio | None
    configuration: Mapping[str, tuple[Scalar, Scalar]]
    searched: tuple[str, ...]
    pairs: tuple[Pair, ...]
    unfair: tuple[str, ...]

    @property
    def median(self) -> float | None:
        """The median ratio of `pairs`."""
        return statistics.median(pair.ratio for pair in self.pairs) if self.pairs else None


def compare(a: SweepSide, b: SweepSide) -> Comparison:
    """Compares B with A."""
    left, right = (side.best[0] if side.best else None for side in (a, b))
    differ = _differ(left.config, right.config) if left and right else {}
    if left and right and left.config.names_are_fields != right.config.names_are_fields:
        # A script and a pipeline share few names.
        differ = {name: values for name, values in differ.items() if name in {*a.varied, *b.varied}}
    both = a.fingerprint.get("space", {}).keys() & b.fingerprint.get("space", {}).keys()
    return Comparison(
        a=a,
        b=b,
        baseline=_speed_ratio(a, a.baseline, b, b.baseline),
        winner=_speed_ratio(a, left, b, right),
        gain=_ratio(a.gains_of(left), b.gains_of(right)) if left and right else None,
        configuration=differ,
        searched=tuple(name for name in differ if name in both),
        pairs=tuple(sorted(_pairs(a, b), key=lambda pair: -abs(math.log(pair.ratio)))),
        unfair=tuple(_caveats(a, b)),
    )


def log_ratio(a: Sequence[float], b: Sequence[float]) -> tuple[float, float, float]:
    """Returns mean, low and high of log(B / A), with Welch's (1947) 95% interval, trimmed as in confirmation.

    The rounds of two sweeps are not paired: each mean has its own variance, and the degrees of
    freedom are those of Satterthwaite.

    Args:
        a: A figure per round, at least two; `b` likewise.
    """
    logs = [[math.log(value) for value in figures] for figures in (a, b)]
    mean = trimmed_mean(logs[1]) - trimmed_mean(logs[0])
    variances = [trimmed_variance(values) for values in logs]
    parts = [(value / len(values), freedom) for values, (value, freedom) in zip(logs, variances, strict=True)]
    total = sum(value for value, _ in parts)
    if not total:
        return mean, mean, mean
    half = Variance(total, total**2 / sum(value**2 / freedom for value, freedom in parts)).half_width()
    return mean, mean - half, mean + half


def _ratio(a: Sequence[float], b: Sequence[float]) -> SpeedRatio | None:
    if min(len(a), len(b)) < 2:
        return None
    ratio, low, high = (math.exp(log) for log in log_ratio(a, b))
    return SpeedRatio(ratio=ratio, low=low, high=high)


def _speed_ratio(
    a: SweepSide, left: TrialRecord | None, b: SweepSide, right: TrialRecord | None
) -> SpeedRatio | None:
    if left is None or right is None or left.measurement is None or right.measurement is None:
        return None
    before, after = a.summary.throughput_of(left), b.summary.throughput_of(right)
    if not before or not after:
        return None
    versus = _ratio(a.speeds_of(left), b.speeds_of(right)) or SpeedRatio(ratio=after / before)
    samples = left.measurement.train_samples, right.measurement.train_samples
    return dataclasses.replace(
        versus, epoch_ratio=samples[1] / samples[0] / versus.ratio if all(samples) else None
    )


def _differ(left: TrialConfig, right: TrialConfig) -> dict[str, tuple[Scalar, Scalar]]:
    one, other = left.canonical().flatten(), right.canonical().flatten()
    return {n: (one.get(n), other.get(n)) for n in {**one, **other} if one.get(n) != other.get(n)}


def _pairs(a: SweepSide, b: SweepSide) -> Iterator[Pair]:
    mine, theirs = _measured_trials(a), _measured_trials(b)
    for key, left in mine.items():
        right = theirs.get(key)
        if right is not None:
            yield Pair(a=left[0], b=right[0], ratio=right[1] / left[1])


def _measured_trials(side: SweepSide) -> dict[str, tuple[TrialRecord, float]]:
    """Returns the measured trials and their throughput, by key, without those screened out."""
    return {
        record.config.key(): (record, speed)
        for record in side.summary.records
        if (speed := record.metric("throughput"))
        and record.measurement is not None
        and not record.measurement.is_screened
    }


def _caveats(a: SweepSide, b: SweepSide) -> Iterator[str]:
    """Yields a sentence for each reason why the figures are not comparable."""
    sides = {"A": a, "B": b}
    if a.summary.device != b.summary.device:
        yield f"The devices differ: {a.summary.device} and {b.summary.device}."
    yield from _other_subject(a, b)
    synthetic = [title for title, side in sides.items() if side.summary.synthetic]
    if synthetic:
        yield f"The data of {' and '.join(synthetic)} is synthetic: speeds on your own data may differ."
    for title, side in sides.items():
        if side.summary.state != "finished":
            yield f"{title} is {side.summary.state}."
        best = side.best
        if best is None:
            yield f"{title} has no measured baseline."
            continue
        if best[1] == "unconfirmed":
            yield f"{title}'s winner is not confirmed: being the fastest single trial is partly luck."
        for what, record in {"winner": best[0], "baseline": side.baseline}.items():
            if record is not None and (disturbance := side.summary.disturbance_of(record)):
                yield words.disturbance(f"{title}'s {what}", disturbance)


def _other_subject(a: SweepSide, b: SweepSide) -> Iterator[str]:
    """Yields the differences in what the two sweeps train, on which data, and who timed them."""
    before, after = a.fingerprint, b.fingerprint
    alike = all(before.get(key) == after.get(key) for key in ("pipeline", "command"))
    if not alike:
        yield "They do not run the same pipeline or command."
    pairs = {"baselines": (a.baseline, b.baseline)}
    if a.best and b.best:
        pairs["winners"] = (a.best[0], b.best[0])
    sentences: dict[str, list[str]] = {}
    for what, (left, right) in pairs.items():
        if left is not None and right is not None:
            for sentence in _mismatches(left, right):
                sentences.setdefault(sentence, []).append(what)
    yield from (f"The {' and the '.join(whats)} {sentence}" for sentence, whats in sentences.items())
    if alike and before.get("data") != after.get("data"):
        yield "The data may differ: its options or its files' names, sizes, times or location do not match."


def _mismatches(left: TrialRecord, right: TrialRecord) -> Iterator[str]:
    """Yields the reasons why two trials are not comparable."""
    if left.measurement is None or right.measurement is None:
        return
    work = left.config.work().keys() | right.config.work().keys()
    changed = ", ".join(name for name in _differ(left.config, right.config) if name in work)
    if changed:
        yield f"do not do the same work ({changed}): samples/s are not comparable."
    reported = left.measurement.reported_by, right.measurement.reported_by
    if reported[0] != reported[1]:
        yield f"were timed by {' and by '.join(name or 'sweeper itself' for name in reported)}."
    samples = left.measurement.train_samples, right.measurement.train_samples
    if all(samples) and samples[0] != samples[1]:
        yield f"saw different data: {samples[0]:,} and {samples[1]:,} samples per epoch."
    looked = left.quality, right.quality
    if looked[0] and looked[1] and looked[0].samples != looked[1].samples:
        counts = f"{looked[0].samples:,} and {looked[1].samples:,} samples"
        yield f"had their loss measured after {counts}: the losses are not comparable."
