"""Holds the trials of a sweep, each with its loss, derived metrics and violations.

Nothing here reads or writes a file, and only the table itself grows with the number of trials.
"""

from __future__ import annotations

import dataclasses
from bisect import insort
from collections.abc import Iterable, Mapping, Sequence

from sweeper.core.config import Scalar, TrialConfig
from sweeper.core.job import SEARCH_STAGE
from sweeper.core.measurement import FailureKind, Measurement, Quality
from sweeper.core.metrics import is_known_metric
from sweeper.core.record import BASELINE, SearchResult, TrialRecord, with_added
from sweeper.results.numbers.finalists import is_speed
from sweeper.results.numbers.limits import Limit, Yardstick, objective_values, with_quality, with_violations
from sweeper.results.numbers.projection import with_derived
from sweeper.schema import SweepSpec

NUM_SEEDS = 3
"""Number of seeds over which the baseline's loss is measured."""
WINNING_MARGIN = 0.9
SCREEN_MARGIN = 0.8
"""Share of the fastest below which a trial ends after a short window; noise is smaller."""
NUM_WORST = 2
"""A trial is compared with the worst of the others, so two are kept."""


class TrialTable:
    """All trials of one sweep, in memory; the sweep's folder has the same.

    Attributes:
        records: Trials by number, up to date.
        results: Results recorded for the sampler, by number.
        last: The highest number so far; -1 before the first trial.
        num_searched: Number of search trials started, without skipped configurations.
        trial_numbers: Number of the trial of each started configuration, by its key.
        passed_over: Number under which each configuration was last skipped, by its key.
        ended: Numbers of the finished trials, in the order in which they finished.
        quality_samples: Training samples after which the loss is measured; 0 if it is not.
        losses: The baseline's losses over its seeds.
    """

    def __init__(self, spec: SweepSpec) -> None:
        """Creates an empty table.

        Args:
            spec: Gives objectives, constraints and production run; its space is not used.
        """
        self._spec, self._metrics = spec, spec.metrics()
        self._unknown = [name for name in spec.constraints if not is_known_metric(name)]
        self.records: dict[int, TrialRecord] = {}
        self.results: dict[int, SearchResult] = {}
        self.last = -1
        self.num_searched = self.num_passed_over = 0
        self.trial_numbers: dict[str, int] = {}
        self.passed_over: dict[str, int] = {}
        self.ended: list[int] = []
        self.quality_samples = 0
        self._qualities: dict[str, Quality] = {}
        self.losses: tuple[float, ...] = ()
        self._extremes = _Extremes(spec, needs_loss=False)

    def enter(self, record: TrialRecord) -> TrialRecord:
        """Enters a started or finished trial, and returns it with its derived values."""
        self._enter(record)
        record = self._update(record.number)
        self._extremes.add(record)
        return record

    def enter_all(self, records: Iterable[TrialRecord]) -> None:
        """Enters many trials, then updates them all."""
        for record in records:
            self._enter(record)
        self.update_all()

    def _enter(self, record: TrialRecord) -> None:
        outcome = record.outcome
        if isinstance(outcome, Measurement) and outcome.quality is not None:
            self._qualities[outcome.quality.key] = outcome.quality
            self._qualities.setdefault(self._key(record.config, outcome.quality.samples), outcome.quality)
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
            self.num_searched += record.stage == SEARCH_STAGE
            self.trial_numbers[key] = record.number

    def measure_loss_after(self, samples: int) -> None:
        """Sets the training samples after which the loss of a trial counts; 0 for no loss."""
        self.quality_samples = samples

    def enter_losses(self, losses: tuple[float, ...]) -> None:
        """Enters the baseline's losses over its seeds, which some limits depend on."""
        self.losses = losses

    def enter_quality(self, quality: Quality, config: TrialConfig) -> None:
        """Enters a quality pass that ran separately, of `config` or of one that trains alike."""
        key = self._key(config, self.quality_samples)
        self._qualities[key] = dataclasses.replace(quality, key=key)

    def quality_of(self, config: TrialConfig) -> Quality | None:
        """Returns the loss of a configuration, if one of the same numerics was measured."""
        return self._qualities.get(self._key(config, self.quality_samples))

    def losses_of(self, config: TrialConfig) -> tuple[float, ...]:
        """Returns the losses of a configuration with its own seed and the next ones, where they are known."""
        seeded = (config.replace({"seed": config.seed + i}) if i else config for i in range(NUM_SEEDS))
        qualities = map(self.quality_of, seeded)
        return tuple(quality.val_loss for quality in qualities if quality is not None)

    def _key(self, config: TrialConfig, samples: int) -> str:
        return f"{config.quality_key()}-{samples}"

    def refresh(self, number: int) -> TrialRecord:
        """Returns a record, updated by all that is known now."""
        record = self._update(number)
        self._take_stock()
        return record

    def update_all(self) -> None:
        """Updates every record, once the limits are known."""
        if BASELINE in self.records:
            self._update(BASELINE)
        # They depend only on the baseline.
        limits = self.limits()
        for number in self.records:
            self._update(number, limits)
        self._take_stock()

    def _take_stock(self) -> None:
        self._extremes = _Extremes(self._spec, needs_loss=bool(self.quality_samples))
        for number in self.ended:
            self._extremes.add(self.records[number])

    def _update(self, number: int, limits: Sequence[Limit] | None = None) -> TrialRecord:
        """Updates and returns a record, with its loss, derived metrics and violations.

        Args:
            limits: The sweep's limits, if they are known and do not depend on this record.
        """
        record = self.records[number]
        record = with_quality(record, self.quality_of(record.config))
        # Entered after each part: for the baseline, the next part depends on it.
        self.records[number] = record
        production = self._spec.production
        samples, price = (production.samples, production.price_per_hour) if production else (None, None)
        record = with_derived(record, self.yardstick, samples, price)
        record = with_added(record, self._metrics)
        self.records[number] = record
        record = with_violations(record, self.limits() if limits is None else limits, self._spec)
        record = self._as_recorded(record)
        self.records[number] = record
        return record

    def _as_recorded(self, record: TrialRecord) -> TrialRecord:
        """Returns a record with its recorded violations of metrics that are unknown here."""
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

    def finished_trials(self) -> list[TrialRecord]:
        """Returns the records with an outcome, in order."""
        return [rec for _, rec in sorted(self.records.items()) if rec.outcome is not None]

    def searched_trials(self) -> list[TrialRecord]:
        """Returns the searched trials that have ended."""
        return [rec for rec in self.finished_trials() if rec.stage == SEARCH_STAGE]

    def quiet_canary_ms(self) -> float:
        """Returns the shortest canary of any window so far; 0 if there is none."""
        return self._extremes.quiet_canary_ms

    @property
    def num_measured(self) -> int:
        """Number of search trials with a measurement."""
        return self._extremes.measured

    def speedup(self, record: TrialRecord) -> float | None:
        """Returns a trial's throughput over the baseline's, as searched."""
        base = self.yardstick
        mine = record.metric("throughput")
        theirs = base.baseline.metric("throughput") if base else None
        return mine / theirs if mine is not None and theirs else None

    def restart_seconds(self, record: TrialRecord) -> float:
        """Returns about how long a measured trial takes to start again, in seconds, its first step included.

        A trial that compiled finds its code in the cache then: its first step takes about as long as the
        slowest one of the trials with the same compile settings that found theirs.
        """
        measured = record.measurement
        assert measured is not None
        first = measured.first_step_seconds
        if measured.compile_cache == "cold":
            cached = [
                trial.measurement.first_step_seconds
                for trial in self.records.values()
                if trial.config.compile == record.config.compile
                and trial.measurement is not None
                and trial.measurement.compile_cache == "warm"
            ]
            first = min(first, max(cached, default=first))
        return measured.startup_seconds + first

    def best_trial(self, like: TrialConfig | None = None) -> TrialRecord | None:
        """Returns the fastest feasible trial with a measured loss, among those of the same work.

        Args:
            like: Configuration whose `model.*` and `data.*` to match; the baseline's by default.
        """
        base = self.records.get(BASELINE)
        number = self._extremes.best_number((like or (base.config if base else TrialConfig())).work_key())
        return self.records[number] if number is not None else None

    def quality_plan(self, config: TrialConfig) -> tuple[int, float]:
        """Returns the samples of the quality pass for `config`, and the throughput it must reach.

        There is no pass if its numerics key has one already. If speed is the only objective, a
        trial that is too slow to win has none either.
        """
        if not self.quality_samples or self.quality_of(config) is not None:
            return 0, 0.0
        if not is_speed(self._spec):
            return self.quality_samples, 0.0
        return self.quality_samples, WINNING_MARGIN * self._rival_throughput(config)

    def screen_above(self, config: TrialConfig) -> float:
        """Returns the throughput that `config` must reach in a short window to be worth a full timing.

        0 if speed is not the only objective: a slower trial may still be useful.
        """
        return SCREEN_MARGIN * self._rival_throughput(config) if is_speed(self._spec) else 0.0

    def _rival_throughput(self, config: TrialConfig) -> float:
        rival = self.best_trial(config)
        return (rival.metric("throughput") if rival else None) or 0.0

    def new_result(self, number: int, params: Mapping[str, Scalar]) -> SearchResult:
        """Returns the result of a finished trial for the sampler.

        Args:
            params: The value of every parameter of the space.
        """
        record = self.records[number]
        # The worst of all trials is among these.
        worst = map(self.records.__getitem__, self._extremes.worst_numbers())
        values = objective_values(record, worst, self._spec)
        return SearchResult(params=params, values=values, constraints=dict(record.violations))

    def record_result(self, number: int, result: SearchResult) -> None:
        """Records the result of a trial for the sampler."""
        self.results[number] = result


class _Extremes:
    """The best and the worst finished trials.

    Attributes:
        quiet_canary_ms: The shortest canary of any window so far; 0 if there is none.
        measured: Number of search trials with a measurement.
    """

    def __init__(self, spec: SweepSpec, *, needs_loss: bool) -> None:
        """Starts without trials.

        Args:
            needs_loss: Whether the best trial needs a measured loss.
        """
        self._spec, self._needs_loss = spec, needs_loss
        self._best: dict[str, tuple[float, int]] = {}
        self._worst: dict[tuple[str, bool], list[tuple[float, int]]] = {}
        self.quiet_canary_ms = 0.0
        self.measured = 0

    def add(self, record: TrialRecord) -> None:
        """Adds a finished trial."""
        measurement = record.measurement
        if measurement is None:
            return
        self.measured += record.stage == SEARCH_STAGE
        canaries = [window.canary_ms for window in measurement.windows] + [self.quiet_canary_ms]
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
            # On a tie, the first.
            rank = record.metric("throughput") or 0.0, -record.number
            key = record.config.work_key()
            self._best[key] = max(self._best.get(key, rank), rank)

    def best_number(self, work_key: str) -> int | None:
        """Returns the number of the fastest feasible trial of a work key; None if there is none."""
        rank = self._best.get(work_key)
        return -rank[1] if rank else None

    def worst_numbers(self) -> set[int]:
        """Returns the numbers of the worst trials by each objective, among the feasible and among all."""
        return {number for ranks in self._worst.values() for _, number in ranks}


def is_passed_over(record: TrialRecord) -> bool:
    """Returns whether a configuration was never run because it was not expected to fit."""
    return record.failure is not None and record.failure.kind is FailureKind.OOM_EXPECTED
