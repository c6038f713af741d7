"""Summarises what is known of a sweep: its trials, as judged now, and the findings of its confirmation."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from sweeper.core.config import Scalar
from sweeper.core.job import SEARCH_STAGE
from sweeper.core.metrics import is_known_metric
from sweeper.core.record import BASELINE, TrialRecord
from sweeper.results.numbers.confirmation import Ratio
from sweeper.results.numbers.confirmation_result import ConfirmationResult
from sweeper.results.numbers.finalists import beyond_production
from sweeper.results.numbers.labels import run_name
from sweeper.results.numbers.pareto import pareto, pick
from sweeper.results.numbers.summary import Row, Summary
from sweeper.results.numbers.trial_table import TrialTable
from sweeper.schema import SweepSpec


@dataclass(frozen=True, kw_only=True)
class SweepFindings:
    """What is known of a sweep, finished or not.

    Attributes:
        state: `finished`, `stopped` or `unfinished`.
        reason: Why its search ended; empty if it has not.
        table: Its trials, as judged now.
        confirmation: The findings of the confirmation; empty before it.
        throughputs: Samples per second over the confirmation rounds, by trial number; with the baseline's.
        varied: The names that differ between its trials.
        is_verified: Whether the winner was verified to train the same.
    """

    name: str
    state: str
    device: str
    reason: str
    synthetic: bool
    spec: SweepSpec
    table: TrialTable
    confirmation: ConfirmationResult
    throughputs: Mapping[int, float]
    varied: tuple[str, ...]
    is_verified: bool

    @cached_property
    def ratios(self) -> Mapping[int, Ratio]:
        """The confirmed ratios by trial number, best first."""
        return {ratio.trial: ratio for ratio in self.confirmation.ratios}

    @cached_property
    def records(self) -> tuple[TrialRecord, ...]:
        """All trials by number."""
        return tuple(record for _, record in sorted(self.table.records.items()))

    @property
    def baseline(self) -> TrialRecord | None:
        """The baseline; None before it has started."""
        return self.table.records.get(BASELINE)

    @property
    def winner(self) -> TrialRecord | None:
        """The winner of the confirmation."""
        number = self.confirmation.winner
        return None if number is None else self.table.records[number]

    def name_of(self, record: TrialRecord) -> str:
        """Returns a record's run name."""
        return run_name(record.number, record.stage, record.config, self.varied)

    def names_of(self, numbers: Iterable[int]) -> tuple[str, ...]:
        """Returns the run names of trials."""
        return tuple(self.name_of(self.table.records[number]) for number in numbers)

    def losses_of(self, record: TrialRecord) -> tuple[float, ...]:
        """Returns a trial's losses over seeds, or its own if no others are known; empty without any."""
        table = self.table
        seeded = table.losses if record is self.baseline else table.losses_of(record.config)
        if len(seeded) > 1:
            return seeded
        loss = record.metric("val_loss")
        return () if loss is None else (loss,)

    def is_loss_checked(self, record: TrialRecord) -> bool:
        """Returns whether a trial's loss was measured, or none is."""
        return record.quality is not None or not self.table.quality_samples


def summarise(sweep: SweepFindings) -> Summary:
    """Returns the summary of a sweep, finished or not."""
    spec, confirmation, winner, records = sweep.spec, sweep.confirmation, sweep.winner, sweep.records
    metrics = [objective.metric for objective in spec.objectives]
    production_samples = spec.production.samples if spec.production else None
    price_per_hour = spec.production.price_per_hour if spec.production else None

    same_work = _with_work_of_baseline(sweep)
    by_loader = sorted(_fastest_checked(sweep, same_work, _kind_of_loader).items())
    front = _front(sweep, same_work)
    unconfirmed = _fastest_without_ratio(sweep, [record for _, record in by_loader])
    with_losses = {one.number for one in (sweep.baseline, unconfirmed, winner) if one is not None}
    return Summary(
        name=sweep.name,
        state=sweep.state,
        device=sweep.device,
        reason=sweep.reason,
        synthetic=sweep.synthetic,
        is_tune=spec.traits.is_of_changes,
        records=records,
        counts=_counts_of(records),
        varied=sweep.varied,
        unknown_metrics=tuple(name for name in spec.metrics() if not is_known_metric(name)),
        yardstick=sweep.table.yardstick,
        baseline_throughput=sweep.throughputs.get(BASELINE),
        # What was confirmed, or was not.
        winner=winner,
        ratio=None if winner is None else sweep.ratios.get(winner.number),
        undecided=None if winner is not None else _best_feasible_ratio(sweep),
        unconfirmed=None if BASELINE in sweep.throughputs else unconfirmed,
        is_verified=sweep.is_verified,
        is_provisional=confirmation.is_provisional,
        ties=sweep.names_of(confirmation.ties),
        infeasible=sweep.names_of(confirmation.infeasible),
        disturbances=confirmation.disturbances,
        # The tables, and what the production run needs.
        per_size=_rows_of_sizes(sweep),
        per_loader=tuple(_row(sweep, kind, record) for kind, record in by_loader),
        objectives=tuple(metrics),
        front=tuple(_row(sweep, "", record) for record in front),
        picked=pick(front, spec.objectives, spec.confirm.pick),
        rule=spec.confirm.pick,
        losses={record.number: sweep.losses_of(record) for record in records if record.number in with_losses},
        time_to_loss=confirmation.time_to_loss,
        unreached_loss=confirmation.unreached_loss,
        production_samples=production_samples,
        price_per_hour=price_per_hour,
    )


def _with_work_of_baseline(sweep: SweepFindings) -> list[TrialRecord]:
    """Returns the trials of the baseline's model and data size; none before the baseline has started."""
    if sweep.baseline is None:
        return []
    work = sweep.baseline.config.work_key()
    return [record for record in sweep.records if record.config.work_key() == work]


def _best_feasible_ratio(sweep: SweepFindings) -> Ratio | None:
    """Returns the best ratio of a candidate that met its limits in confirmation."""
    infeasible = sweep.confirmation.infeasible
    return next((ratio for number, ratio in sweep.ratios.items() if number not in infeasible), None)


def _fastest_without_ratio(sweep: SweepFindings, records: Sequence[TrialRecord]) -> TrialRecord | None:
    """Returns the fastest trial that is faster than the baseline and took no part in confirmation."""
    faster = [
        record
        for record in records
        if record.number not in sweep.ratios and (sweep.table.speedup(record) or 0.0) > 1
    ]
    return max(faster, key=lambda record: record.metric("throughput") or 0.0, default=None)


def _front(sweep: SweepFindings, same_work: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Returns the trials that no other one beats in all objectives; none with a single objective."""
    if len(sweep.spec.objectives) <= 1:
        return []
    return pareto([record for record in same_work if _is_comparable(sweep, record)], sweep.spec.objectives)


def _is_comparable(sweep: SweepFindings, record: TrialRecord) -> bool:
    """Returns whether a trial was measured in full, its loss was checked, and it suits the production run."""
    # A single short window shows only that a trial is slow.
    if record.measurement is None or record.measurement.is_screened:
        return False
    is_checked = sweep.is_loss_checked(record) or record is sweep.baseline
    return is_checked and not beyond_production(record, sweep.spec)


# -- rows ------------------------------------------------------------------------------------------


def _rows_of_sizes(sweep: SweepFindings) -> tuple[Row, ...]:
    """Returns a row for each size of model and data, the fastest first: of the baseline's, the winner."""
    sizes = _fastest_checked(sweep, sweep.records, _work_key)
    if sweep.winner is not None and sweep.baseline is not None:
        sizes[sweep.baseline.config.work_key()] = sweep.winner
    works = [set(record.config.work().items()) for record in sizes.values()]
    common = set.intersection(*works) if works else set()
    fastest_first = sorted(sizes.values(), key=lambda record: -(record.metric("throughput") or 0))
    return tuple(
        _row(sweep, _title_of_work(record.config.work(), common), record) for record in fastest_first
    )


def _row(sweep: SweepFindings, title: str, record: TrialRecord) -> Row:
    number, confirmation = record.number, sweep.confirmation
    ratio = sweep.ratios.get(number)
    losses = sweep.losses_of(record)
    if ratio is not None:
        disturbed = bool(confirmation.disturbances.get(number))
    else:
        disturbed = record.measurement is not None and bool(record.measurement.contamination)
    return Row(
        title=title,
        name=sweep.name_of(record),
        record=record,
        speedup=ratio.ratio if ratio is not None else sweep.table.speedup(record),
        throughput=sweep.throughputs.get(number, record.metric("throughput") or 0.0),
        loss=statistics.fmean(losses) if losses else None,
        is_one_seed=len(losses) == 1 < len(sweep.table.losses),
        confirmed=ratio is not None and sweep.winner is not None and not confirmation.is_provisional,
        disturbed=disturbed,
    )


def _title_of_work(work: Mapping[str, Scalar], common: Collection[tuple[str, Scalar]]) -> str:
    """Returns `hidden_size 64, num_layers 2`: model and data keys not `common` to all sizes."""
    differing = [(name, value) for name, value in work.items() if (name, value) not in common]
    return ", ".join(f"{name.partition('.')[2]} {value}" for name, value in differing) or "the model"


# -- the fastest of a kind -------------------------------------------------------------------------


def _work_key(record: TrialRecord) -> str:
    return record.config.work_key()


def _kind_of_loader(record: TrialRecord) -> str:
    return record.config.loader.kind


def _fastest_checked(
    sweep: SweepFindings, records: Sequence[TrialRecord], key: Callable[[TrialRecord], str]
) -> dict[str, TrialRecord]:
    """Returns for each `key` the fastest trial whose loss was checked or, if there is none, the fastest."""
    checked = [record for record in records if sweep.is_loss_checked(record)]
    return _fastest(records, key) | _fastest(checked, key)


def _fastest(records: Iterable[TrialRecord], key: Callable[[TrialRecord], str]) -> dict[str, TrialRecord]:
    """Returns the fastest feasible record of each `key`."""
    best: dict[str, TrialRecord] = {}
    for record in records:
        if not record.feasible:
            continue
        group = key(record)
        rival = best.get(group)
        if rival is None or (record.metric("throughput") or 0) > (rival.metric("throughput") or 0):
            best[group] = record
    return best


def _counts_of(records: Sequence[TrialRecord]) -> dict[str, int]:
    """Returns how many searched trials were measured, infeasible, or failed with which kind."""
    counts: dict[str, int] = {}
    for record in records:
        if record.stage != SEARCH_STAGE:
            continue
        if record.failure is not None:
            kind = str(record.failure.kind)
        elif record.outcome is None:
            kind = "unfinished"
        else:
            kind = "measured" if record.feasible else "beyond a limit"
        counts[kind] = counts.get(kind, 0) + 1
    return counts
