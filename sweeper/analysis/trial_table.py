"""TrialTable: the trials of a sweep, judged by everything known about them.

Nothing here reads or writes a file, and nothing grows with the number of trials but the table itself.
"""

from __future__ import annotations

import dataclasses
from bisect import insort
from collections.abc import Iterable, Mapping, Sequence

from sweeper.analysis.finalists import is_speed
from sweeper.analysis.judge import Limit, Yardstick, judge, objective_values, with_quality
from sweeper.analysis.projection import with_derived
from sweeper.core.config import Scalar, TrialConfig
from sweeper.core.measurement import FailureKind, Measurement, Quality
from sweeper.core.metrics import is_known_metric, with_added
from sweeper.core.record import BASELINE, SearchResult, TrialRecord
from sweeper.spec import SweepSpec

WINNING_MARGIN = 0.9
SCREEN_MARGIN = 0.8
"""Share of the fastest below which a short window ends a trial: noise does not reach that far."""
NUM_WORST = 2
"""A trial is compared with the worst of the others: of two, one is another."""


class TrialTable:
    """All trials of one sweep, in memory; the folder has the same.

    Attributes:
        records: By number, as judged now.
        results: What the sampler was told of each trial, by number.
        last: The highest number so far; -1 before the first trial.
        num_searched: Searched trials that were begun, less the configurations that were passed over.
        asked: The trial of each configuration that was begun, by its key.
        passed_over: The last time each configuration was passed over, by its key.
        ended: Numbers of the trials that have ended, in that order.
        quality_samples: Training samples after which the loss is measured; 0 where it is not.
        losses: The baseline's, over its seeds.
    """

    def __init__(self, spec: SweepSpec) -> None:
        """An empty table.

        Args:
            spec: Its objectives, constraints and production run; its space does not matter here.
        """
        self._spec, self._metrics = spec, spec.metrics()
        self._unknown = [name for name in spec.constraints if not is_known_metric(name)]
        self.records: dict[int, TrialRecord] = {}
        self.results: dict[int, SearchResult] = {}
        self.last = -1
        self.num_searched = self.num_passed_over = 0
        self.asked: dict[str, int] = {}
        self.passed_over: dict[str, int] = {}
        self.ended: list[int] = []
        self.quality_samples = 0
        self._qualities: dict[str, Quality] = {}
        self.losses: tuple[float, ...] = ()
        self._extremes = _Extremes(spec, needs_loss=False)

    def enter(self, record: TrialRecord) -> TrialRecord:
        """Enters a trial that was begun, or has ended, and returns it as judged."""
        self._enter(record)
        record = self._judge(record.number)
        self._extremes.add(record)
        return record

    def enter_all(self, records: Iterable[TrialRecord]) -> None:
        """Enters many trials, and judges them when all are there."""
        for record in records:
            self._enter(record)
        self.judge_all()

    def _enter(self, record: TrialRecord) -> None:
        outcome = record.outcome
        if isinstance(outcome, Measurement) and outcome.quality is not None:
            self._qualities[outcome.quality.key] = outcome.quality
        if record.number not in self.records:
            self._count(record)
        self.records[record.number] = record
        if outcome is not None:
            self.ended.append(record.number)

    def _count(self, record: TrialRecord) -> None:
        self.last = max(self.last, record.number)
        key = record.config.key()
        if is_passed_over(record):
            self.num_passed_over += 1
            self.passed_over[key] = record.number
        else:
            self.num_searched += record.stage == "search"
            self.asked[key] = record.number

    def measure_loss_after(self, samples: int) -> None:
        """From here on the loss of a trial is the one after so many training samples; 0 for none."""
        self.quality_samples = samples

    def enter_losses(self, losses: tuple[float, ...]) -> None:
        """Enters the baseline's losses over its seeds; limits that rest on them become known."""
        self.losses = losses

    def enter_quality(self, quality: Quality) -> None:
        """Enters a quality pass that ran on its own."""
        self._qualities[quality.key] = quality

    def quality_of(self, config: TrialConfig) -> Quality | None:
        """Returns the loss of a configuration, where one of the same numerics was looked at."""
        return self._qualities.get(f"{config.quality_key()}-{self.quality_samples}")

    def judged(self, number: int) -> TrialRecord:
        """Returns a record, judged anew by all that is known now."""
        record = self._judge(number)
        self._take_stock()
        return record

    def judge_all(self) -> None:
        """Judges every record anew: the limits have become known."""
        if BASELINE in self.records:
            self._judge(BASELINE)
        # They rest on the baseline alone.
        limits = self.limits()
        for number in self.records:
            self._judge(number, limits)
        self._take_stock()

    def _take_stock(self) -> None:
        self._extremes = _Extremes(self._spec, needs_loss=bool(self.quality_samples))
        for number in self.ended:
            self._extremes.add(self.records[number])

    def _judge(self, number: int, limits: Sequence[Limit] | None = None) -> TrialRecord:
        """Returns a record with its loss, derived metrics and violations.

        Args:
            limits: Those of the sweep, where they are known and do not rest on this record.
        """
        record = with_quality(self.records[number], self._qualities, self.quality_samples)
        # Entered after each part: where it is the baseline's, the next part rests on it.
        self.records[number] = record
        production = self._spec.production
        record = with_derived(record, self.yardstick, production.samples if production else None)
        record = with_added(record, self._metrics)
        self.records[number] = record
        record = judge(record, self.limits() if limits is None else limits, self._spec)
        record = self._as_told(record)
        self.records[number] = record
        return record

    def _as_told(self, record: TrialRecord) -> TrialRecord:
        """Returns a record that violates what the search was told, by metrics that are not installed here."""
        result = self.results.get(record.number)
        if result is None or not self._unknown:
            return record
        kept = {name: result.constraints[name] for name in self._unknown if name in result.constraints}
        return dataclasses.replace(record, violations={**record.violations, **kept})

    @property
    def yardstick(self) -> Yardstick | None:
        """The baseline, once it is measured."""
        baseline = self.records.get(BASELINE)
        if baseline is None or baseline.measurement is None:
            return None
        return Yardstick(baseline, self.losses)

    def limits(self) -> list[Limit]:
        """Returns the bounds in numbers; none before the baseline is measured."""
        yardstick = self.yardstick
        return yardstick.limits(self._spec) if yardstick else []

    def finished(self) -> list[TrialRecord]:
        """Returns the records with an outcome, in order."""
        return [rec for _, rec in sorted(self.records.items()) if rec.outcome is not None]

    def searched(self) -> list[TrialRecord]:
        """Returns the searched trials that have ended."""
        return [rec for rec in self.finished() if rec.stage == "search"]

    def quiet_canary_ms(self) -> float:
        """Returns the shortest canary beside any window so far; 0 where there is none."""
        return self._extremes.quiet_canary_ms

    @property
    def num_measured(self) -> int:
        """Searched trials that gave a measurement."""
        return self._extremes.measured

    def x_baseline(self, record: TrialRecord) -> float | None:
        """Returns a trial's throughput over the baseline's, as searched."""
        base = self.yardstick
        mine = record.metric("throughput")
        theirs = base.baseline.metric("throughput") if base else None
        return mine / theirs if mine is not None and theirs else None

    def best(self, like: TrialConfig | None = None) -> TrialRecord | None:
        """Returns the fastest feasible trial whose loss was looked at, among those of the same work.

        Args:
            like: Whose `model.*` and `data.*` to match; the baseline's by default.
        """
        base = self.records.get(BASELINE)
        number = self._extremes.best((like or (base.config if base else TrialConfig())).work_key())
        return self.records[number] if number is not None else None

    def quality_plan(self, config: TrialConfig) -> tuple[int, float]:
        """Returns the samples of the quality pass for `config`, and the throughput it must reach.

        No pass where this numerics key has one; none for a trial that is too slow to win anything,
        where it is speed alone that wins.
        """
        if not self.quality_samples or self.quality_of(config) is not None:
            return 0, 0.0
        if not is_speed(self._spec):
            return self.quality_samples, 0.0
        return self.quality_samples, WINNING_MARGIN * self._rival_throughput(config)

    def screen_above(self, config: TrialConfig) -> float:
        """Returns the throughput that `config` must reach in a short window to be worth a full timing.

        0 where speed is not the only objective: a slower trial may yet be of use.
        """
        return SCREEN_MARGIN * self._rival_throughput(config) if is_speed(self._spec) else 0.0

    def _rival_throughput(self, config: TrialConfig) -> float:
        rival = self.best(config)
        return (rival.metric("throughput") if rival else None) or 0.0

    def new_result(self, number: int, params: Mapping[str, Scalar]) -> SearchResult:
        """Returns what the sampler is to be told of a trial that has ended.

        Args:
            params: The value of every parameter of the space.
        """
        record = self.records[number]
        # What is worst of all is worst of some of them.
        worst = map(self.records.__getitem__, self._extremes.worst())
        values = objective_values(record, worst, self._spec)
        return SearchResult(params=params, values=values, constraints=dict(record.violations))

    def record_result(self, number: int, result: SearchResult) -> None:
        """Fixes what the sampler is told of a trial."""
        self.results[number] = result


class _Extremes:
    """The best and the worst of the trials that have ended.

    Attributes:
        quiet_canary_ms: The shortest canary beside any window so far; 0 where there is none.
        measured: How many searched trials gave a measurement.
    """

    def __init__(self, spec: SweepSpec, *, needs_loss: bool) -> None:
        """Nothing has ended yet.

        Args:
            needs_loss: Whether the best is one whose loss was looked at.
        """
        self._spec, self._needs_loss = spec, needs_loss
        self._best: dict[str, tuple[float, int]] = {}
        self._worst: dict[tuple[str, bool], list[tuple[float, int]]] = {}
        self.quiet_canary_ms = 0.0
        self.measured = 0

    def add(self, record: TrialRecord) -> None:
        """Takes in a trial that has ended."""
        found = record.measurement
        if found is None:
            return
        self.measured += record.stage == "search"
        canaries = [window.canary_ms for window in found.windows] + [self.quiet_canary_ms]
        self.quiet_canary_ms = min((ms for ms in canaries if ms), default=0.0)
        for objective in self._spec.objectives:
            value = record.metric(objective.metric)
            if value is None:
                continue
            low = value if objective.direction == "maximize" else -value
            for kind in {False, record.feasible}:
                worst = self._worst.setdefault((objective.metric, kind), [])
                insort(worst, (low, record.number))
                del worst[NUM_WORST:]
        if record.feasible and (record.quality or not self._needs_loss):
            # Of equal ones the first.
            rank = record.metric("throughput") or 0.0, -record.number
            key = record.config.work_key()
            self._best[key] = max(self._best.get(key, rank), rank)

    def best(self, work_key: str) -> int | None:
        """Returns the number of the fastest feasible trial of a work; None where there is none."""
        found = self._best.get(work_key)
        return -found[1] if found else None

    def worst(self) -> set[int]:
        """Returns the numbers of the trials that are worst by an objective: of the feasible, and of all."""
        return {number for each in self._worst.values() for _, number in each}


def is_passed_over(record: TrialRecord) -> bool:
    """Returns whether a configuration was never run, because of what was expected of it."""
    return record.failure is not None and record.failure.kind is FailureKind.OOM_EXPECTED
