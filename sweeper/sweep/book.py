"""The book of a sweep: its records as judged now, and what follows from them for the next trial."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sweeper.analysis.finalists import is_speed
from sweeper.analysis.judge import Limit, Yardstick, judge, objective_values, with_quality
from sweeper.analysis.projection import with_derived
from sweeper.core.codec import decode
from sweeper.core.config import TrialConfig
from sweeper.core.files import ours
from sweeper.core.job import OUTCOME, RUNS_AGAIN, Job
from sweeper.core.measurement import Measurement, Outcome, Quality, Report
from sweeper.core.place import Place, read_place
from sweeper.core.record import LOSS_METRICS, TrialRecord
from sweeper.search import Told
from sweeper.spec import SweepSpec
from sweeper.sweep.journal import Entry, Journal
from sweeper.sweep.runner import is_tried_again
from sweeper.sweep.standing import Standing, is_passed_over

BASELINE = 0
NUM_SEEDS = 3
MIN_STEPS_OF_LARGEST = 50
WINNING_MARGIN = 0.9
SCREEN_MARGIN = 0.8
"""Share of the fastest below which a short window ends a trial: noise does not reach that far."""


class Book:
    """All records of one sweep, in memory; the folder has the same.

    Attributes:
        last: The highest number so far; -1 before the first trial.
        num_searched: Searched trials that were begun, less the configurations that were passed over.
        asked: The trial of each configuration that was begun, by its key.
        passed_over: The last time each configuration was passed over, by its key.
        ended: Numbers of the trials that have ended, in that order.
    """

    def __init__(self, journal: Journal, spec: SweepSpec) -> None:
        self.journal = journal
        self.spec = spec
        self.records: dict[int, TrialRecord] = {}
        self.told: dict[int, Told] = {}
        self.last = -1
        self.num_searched = self.num_passed_over = 0
        self.asked: dict[str, int] = {}
        self.passed_over: dict[str, int] = {}
        self.ended: list[int] = []
        self.quality_samples = 0
        self._qualities: dict[str, Quality] = {}
        self.losses: tuple[float, ...] = ()
        self._standing = Standing(spec, needs_loss=False)

    def enter(self, number: int, job: Job, outcome: Outcome | Report | None) -> TrialRecord:
        """Enters a trial, or what became of it, and returns it as judged."""
        assert not isinstance(outcome, Report)
        record = TrialRecord(
            number=number,
            uid=job.uid,
            stage=job.stage,
            config=job.config,
            outcome=outcome,
            params=job.params,
            origin=job.origin,
            folder=str(self.journal.trial_folder(number)),
            place=read_place(self.journal.trial_folder(number)) if outcome is not None else Place(),
        )
        if isinstance(outcome, Measurement) and outcome.quality is not None:
            self._qualities[outcome.quality.key] = outcome.quality
        if number not in self.records:
            self._count(record)
        self.records[number] = record
        record = self._judge(number)
        if outcome is not None:
            self.ended.append(number)
            self._standing.add(record)
        return record

    def _count(self, record: TrialRecord) -> None:
        self.last = max(self.last, record.number)
        key = record.config.key()
        if is_passed_over(record):
            self.num_passed_over += 1
            self.passed_over[key] = record.number
        else:
            self.num_searched += record.stage == "search"
            self.asked[key] = record.number

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
        for number in self.records:
            self._judge(number)
        self._take_stock()

    def _take_stock(self) -> None:
        self._standing = Standing(self.spec, needs_loss=bool(self.quality_samples))
        for number in self.ended:
            self._standing.add(self.records[number])

    def _judge(self, number: int) -> TrialRecord:
        """Returns a record with its loss, derived metrics and violations."""
        record = with_quality(self.records[number], self._qualities, self.quality_samples)
        # Entered after each part: where it is the baseline's, the next part rests on it.
        self.records[number] = record
        production = self.spec.production
        record = with_derived(record, self.yardstick, production.samples if production else None)
        self.records[number] = record
        record = judge(record, self.limits(), self.spec)
        self.records[number] = record
        return record

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
        return yardstick.limits(self.spec) if yardstick else []

    def finished(self) -> list[TrialRecord]:
        """Returns the records with an outcome, in order."""
        return [rec for _, rec in sorted(self.records.items()) if rec.outcome is not None]

    def searched(self) -> list[TrialRecord]:
        """Returns the searched trials that have ended."""
        return [rec for rec in self.finished() if rec.stage == "search"]

    def quiet_canary_ms(self) -> float:
        """Returns the shortest canary beside any window so far; 0 where there is none."""
        return self._standing.quiet_canary_ms

    @property
    def num_measured(self) -> int:
        """Searched trials that gave a measurement."""
        return self._standing.measured

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
        number = self._standing.best((like or (base.config if base else TrialConfig())).work_key())
        return self.records[number] if number is not None else None

    def quality_plan(self, config: TrialConfig) -> tuple[int, float]:
        """Returns the samples of the quality pass for `config`, and the throughput it must reach.

        No pass where this numerics key has one; none for a trial that is too slow to win anything,
        where it is speed alone that wins.
        """
        if not self.quality_samples or self.quality_of(config) is not None:
            return 0, 0.0
        if not is_speed(self.spec):
            return self.quality_samples, 0.0
        return self.quality_samples, WINNING_MARGIN * self._rival_throughput(config)

    def screen_above(self, config: TrialConfig) -> float:
        """Returns the throughput that `config` must reach in a short window to be worth a full timing.

        0 where speed is not the only objective: a slower trial may yet be of use.
        """
        return SCREEN_MARGIN * self._rival_throughput(config) if is_speed(self.spec) else 0.0

    def _rival_throughput(self, config: TrialConfig) -> float:
        rival = self.best(config)
        return (rival.metric("throughput") if rival else None) or 0.0

    def tell(self, number: int) -> Told | None:
        """Fixes and returns what the search is told of a trial; None where it lies outside the space."""
        if number in self.told:
            return self.told[number]
        record = self.records[number]
        params = record.params or self.spec.params_of(record.config)
        if not params:
            return None
        told = Told(
            params=params,
            # What is worst of all is worst of some of them.
            values=objective_values(record, map(self.records.__getitem__, self._standing.worst()), self.spec),
            constraints=dict(record.violations),
        )
        self.journal.write_told(number, told)
        self.told[number] = told
        return told

    def load(self, entries: Iterable[Entry]) -> list[Entry]:
        """Enters what the folder has; returns the trials that were begun and have no outcome that stands."""
        unfinished = []
        for entry in entries:
            with ours(entry.folder / OUTCOME, RUNS_AGAIN):
                if isinstance(entry.outcome, Report):
                    raise ValueError("it is no trial's")
            again = entry.told is None and is_tried_again(entry.job, entry.outcome)
            self.enter(entry.number, entry.job, None if again else entry.outcome)
            if entry.told is not None:
                self.told[entry.number] = entry.told
            if entry.outcome is None or again:
                unfinished.append(entry)
        return unfinished


def looks_at_loss(spec: SweepSpec) -> bool:
    """Returns whether an objective or a constraint rests on the loss, so that trials need a quality pass."""
    goals = {*spec.constraints, *(objective.metric for objective in spec.objectives)}
    return not goals.isdisjoint(LOSS_METRICS)


def quality_of(outcome: Outcome | Report, folder: Path) -> Quality | None:
    """Returns the quality in the outcome of the quality job in `folder`, or None where it failed.

    Raises:
        EnvironmentStopError: The file was spoilt.
    """
    if not isinstance(outcome, Report):
        return None
    with ours(folder / OUTCOME, RUNS_AGAIN):
        quality = decode(Quality, outcome.values)
    return quality


def trained_samples(baseline: Measurement) -> int:
    """Returns how many samples a script had trained on when its windows were over: its loss is there."""
    warm = baseline.throughput * baseline.warmup_seconds
    return max(1, int(sum(window.samples for window in baseline.windows) + warm))


def auto_quality_samples(baseline: Measurement, batch_size: int, seconds: float) -> int:
    """Returns how many samples the baseline trains on in `seconds`, its data path left aside.

    The quality pass gathers on the device, whatever the baseline's loader costs.
    """
    parts = baseline.breakdown
    per_second = batch_size / max(parts.compute_s, 1e-9)
    samples = max(per_second, baseline.throughput) * seconds
    return max(1000, int(samples) // 1000 * 1000)
