"""Loads a sweep from its folder to show, compare or export it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sweeper.core.codec import decode
from sweeper.core.job import CONFIG, OUTCOME, RESTORE_HINT, is_retried, read_job, read_outcome
from sweeper.core.measurement import Outcome, Quality, Report
from sweeper.core.metrics import is_known_metric
from sweeper.core.record import BASELINE, TrialRecord
from sweeper.exports import verification
from sweeper.race.log import Round
from sweeper.race.tally import trimmed_mean
from sweeper.results.numbers.confirmation import Ratio
from sweeper.results.numbers.decision import Decision, decide
from sweeper.results.numbers.finalists import beyond_production
from sweeper.results.numbers.labels import run_name
from sweeper.results.numbers.pareto import pareto, pick
from sweeper.results.numbers.sensitivity import Sensitivity, sensitivity
from sweeper.results.numbers.summary import Row, Summary, counts_of, find_fastest, work_title
from sweeper.results.numbers.trial_table import TrialTable
from sweeper.schema import SweepSpec
from sweeper.schema.enough_steps import with_enough_steps
from sweeper.sweep.folder.journal import (
    ENDS_ANEW,
    FINAL_RACE,
    INTERIM_RACE,
    INTERIM_RESULT,
    RESULT,
    Entry,
    Journal,
)
from sweeper.sweep.folder.result import ConfirmationResult, SweepResult
from sweeper.system.files import reading
from sweeper.tracking import Confirmation

NUM_SEEDS = 3
"""Number of seeds over which the baseline's loss is measured."""


@dataclass(frozen=True)
class LoadedSweep:
    """A sweep as loaded from its folder; derived results are computed once.

    Attributes:
        about: Facts about its machine and data: `device`, `synthetic`, `notes` and others.
        result: The result, or the result so far if it was stopped; None if there is neither.
        state: `finished`, `stopped` or `unfinished`.
    """

    journal: Journal
    spec: SweepSpec
    about: Mapping[str, Any]
    table: TrialTable
    result: SweepResult | None
    state: str

    @cached_property
    def summary(self) -> Summary:
        """The summary for reports."""
        return summarise(self)

    @cached_property
    def decision(self) -> Decision:
        """The sweep's decision."""
        return decide(self.summary)

    @cached_property
    def sensitivity(self) -> tuple[Sensitivity, ...]:
        """The cost of moving the chosen trial by one value; empty if the baseline stays."""
        best, spec = self.decision.best, self.spec
        if self.table.quality_samples:
            # Values that the search could not ask for do not count as neighbours.
            spec, _ = with_enough_steps(spec, self.table.quality_samples)
        return sensitivity(best.record, self.summary.records, spec) if best is not None else ()

    def varied_names(self) -> tuple[str, ...]:
        """Returns the names that differ between the trials."""
        return varied_names(self.spec)

    def name_of(self, record: TrialRecord) -> str:
        """Returns a record's run name."""
        return run_name(record.number, record.stage, record.config, self.varied_names())

    @property
    def confirmation(self) -> ConfirmationResult:
        """The findings of the confirmation; empty without a result."""
        return self.result.confirmation if self.result else ConfirmationResult(winner=None)

    @cached_property
    def race(self) -> Sequence[Round]:
        """The rounds of its race; none for a sweep of an earlier version."""
        return self.journal.rounds(INTERIM_RACE) or self.journal.rounds(FINAL_RACE)

    @cached_property
    def rounds(self) -> Sequence[Round]:
        """The rounds that its ratios rest on; of schema 1, with a single turn of each process."""
        if not self.confirmation.ratios:
            return []
        return self.race or self.journal.rounds_of_schema_1()

    def ratios(self) -> dict[int, Ratio]:
        """Returns the confirmed ratios by trial number."""
        return {ratio.trial: ratio for ratio in self.confirmation.ratios}

    def confirmations(self) -> dict[int, Confirmation]:
        """Returns the confirmation of each trial that took part, including the baseline."""
        confirmations = {
            number: Confirmation(
                throughput=ratio.throughput,
                ratio=ratio.ratio,
                ratio_low=ratio.low,
                ratio_high=ratio.high,
                rounds=ratio.rounds,
                turns=self._turns(number),
            )
            for number, ratio in self.ratios().items()
        }
        values = tuple(one.speeds[BASELINE] for one in self.rounds if BASELINE in one.speeds)
        if values:
            speed = math.exp(trimmed_mean([math.log(value) for value in values]))
            confirmations[BASELINE] = Confirmation(
                throughput=speed, rounds=values, turns=self._turns(BASELINE)
            )
        return confirmations

    def _turns(self, number: int) -> tuple[tuple[float, float], ...]:
        """Returns when a trial's turns ended, in seconds before the end of the race, and their speeds."""
        ended_at = self.race[-1].ended_at if self.race else 0.0
        lives = [one.lives[number] for one in self.race if number in one.lives]
        turns = [turn for life in lives for turn in life.turns]
        return tuple((ended_at - turn.at, turn.samples / turn.seconds) for turn in turns)

    def trace_report(self, number: int) -> Mapping[str, Any]:
        """Returns the report of a trial's trace (`sweeper.trainer.trace`); empty if it was not traced."""
        outcome = read_outcome(self.journal.setup_folder(f"trace-{number}"))
        return outcome.values if isinstance(outcome, Report) else {}

    def stages(self) -> dict[int, str]:
        """Returns the last stage of each trial: `winner`, or `candidate` for its rivals."""
        stages = {number: record.stage for number, record in self.table.records.items()}
        stages.update(dict.fromkeys(self.ratios(), "candidate"))
        if self.confirmation.winner is not None:
            stages[self.confirmation.winner] = "winner"
        return stages


def varied_names(spec: SweepSpec) -> tuple[str, ...]:
    """Returns the names that differ between a sweep's trials: the space's, then the references'."""
    names = dict.fromkeys(spec.varied_names())
    for entry in (spec.baseline, *spec.also_try):
        names.update(dict.fromkeys(entry))
    return tuple(names)


def load_sweep(journal: Journal) -> LoadedSweep:
    """Loads a sweep's folder without running or writing anything."""
    document = journal.read()
    spec = journal.spec(document)
    table = TrialTable(spec)
    table.enter_losses(_enter_losses(table, journal, "loss"))
    enter_trials(table, journal, journal.trials())
    state, result = _state_of(journal)
    if result is not None and result.confirmation.winner is not None:
        _enter_losses(table, journal, f"loss-{result.confirmation.winner}")
    sweep = LoadedSweep(journal, spec, document["about"], table, result, state)
    path = journal.folder / (RESULT if state == "finished" else INTERIM_RESULT)
    with reading(path, ENDS_ANEW):
        _look_at_result(sweep)
    return sweep


def _enter_losses(table: TrialTable, journal: Journal, name: str) -> tuple[float, ...]:
    """Enters the losses over seeds in the folders `setup/<name>-<i>`; returns them."""
    losses = []
    for i in range(NUM_SEEDS):
        folder = journal.setup_folder(f"{name}-{i}")
        outcome = read_outcome(folder) if (folder / CONFIG).exists() else None
        quality = quality_of(outcome, folder) if outcome is not None else None
        if quality is not None:
            job = read_job(folder)
            table.measure_loss_after(job.plan.quality_samples)
            table.enter_quality(quality, job.config)
            losses.append(quality.val_loss)
    return tuple(losses)


def enter_trials(table: TrialTable, journal: Journal, entries: Iterable[Entry]) -> list[Entry]:
    """Enters the folder's trials in the table; returns those that have begun and have no final outcome."""
    unfinished, records = [], []
    for entry in entries:
        outcome = entry.outcome
        if isinstance(outcome, Report):
            with reading(entry.folder / OUTCOME, RESTORE_HINT):
                raise ValueError("it is not the outcome of a trial")
        if entry.result is None and is_retried(entry.job, outcome):
            outcome = None
        records.append(journal.record(entry.number, entry.job, outcome))
        if entry.result is not None:
            table.record_result(entry.number, entry.result)
        if outcome is None:
            unfinished.append(entry)
    table.enter_all(records)
    return unfinished


def quality_of(outcome: Outcome | Report, folder: Path) -> Quality | None:
    """Returns the quality in the outcome of the quality job in `folder`, or None if it failed.

    Raises:
        EnvironmentStopError: The file is damaged.
    """
    if not isinstance(outcome, Report):
        return None
    with reading(folder / OUTCOME, RESTORE_HINT):
        quality = decode(Quality, outcome.values)
    return quality


def _look_at_result(sweep: LoadedSweep) -> None:
    """Checks every trial that a sweep's result names, so that a wrong number raises here."""
    confirmation = sweep.confirmation
    for number in (confirmation.winner, *sweep.ratios(), *confirmation.ties, *confirmation.infeasible):
        if number is not None and sweep.table.records[number].outcome is None:
            raise ValueError(f"it names trial {number}, which has no outcome")


def summarise(sweep: LoadedSweep) -> Summary:
    """Returns the summary of a sweep, finished or not."""
    table, ratios, confirmed = sweep.table, sweep.ratios(), sweep.confirmations()
    confirmation = sweep.confirmation
    winner = confirmation.winner
    records = [record for _, record in sorted(table.records.items())]
    base = table.records.get(BASELINE)
    same_work = [r for r in records if base and r.config.work_key() == base.config.work_key()]
    looked_at = {r.number for r in records if r.quality is not None or not table.quality_samples}

    leader = next((ratio for number, ratio in ratios.items() if number not in confirmation.infeasible), None)

    def losses_of(record: TrialRecord) -> tuple[float, ...]:
        losses = table.losses if record is base else table.losses_of(record.config, NUM_SEEDS)
        loss = record.metric("val_loss")
        return losses if len(losses) > 1 else () if loss is None else (loss,)

    def row(title: str, record: TrialRecord) -> Row:
        ratio, in_rounds = ratios.get(record.number), confirmed.get(record.number)
        losses = losses_of(record)
        return Row(
            title=title,
            name=sweep.name_of(record),
            record=record,
            speedup=ratio.ratio if ratio else table.speedup(record),
            throughput=in_rounds.throughput if in_rounds else record.metric("throughput") or 0.0,
            loss=statistics.fmean(losses) if losses else None,
            is_one_seed=len(losses) == 1 < len(table.losses),
            confirmed=ratio is not None and winner is not None and not confirmation.is_provisional,
            disturbed=bool(
                confirmation.disturbances.get(record.number)
                if ratio
                else record.measurement and record.measurement.contamination
            ),
        )

    # For each work, the fastest trial whose loss was checked or, if there is none, the fastest.
    sizes = find_fastest(records, _work) | find_fastest([r for r in records if r.number in looked_at], _work)
    if winner is not None and base is not None:
        sizes[base.config.work_key()] = table.records[winner]
    common = set.intersection(*(set(r.config.work().items()) for r in sizes.values())) if sizes else set()
    objectives, rule = sweep.spec.objectives, sweep.spec.confirm.pick
    # A single short window shows only that a trial is slow.
    whole = [r for r in same_work if r.measurement and not r.measurement.is_screened]
    whole = [r for r in whole if r.number in looked_at or r is base]
    whole = [r for r in whole if not beyond_production(r, sweep.spec)]
    front = pareto(whole, objectives) if len(objectives) > 1 else []
    loaders = find_fastest(same_work, _kind) | find_fastest(
        [r for r in same_work if r.number in looked_at], _kind
    )
    by_kind = sorted(loaders.items())
    faster = [r for _, r in by_kind if r.number not in ratios and (table.speedup(r) or 0.0) > 1]
    quickest = max(faster, key=lambda r: r.metric("throughput") or 0.0, default=None)
    return Summary(
        name=sweep.journal.name,
        state=sweep.state,
        device=sweep.about["device"],
        reason=sweep.result.search_end if sweep.result else "",
        synthetic=sweep.about["synthetic"],
        time_to_loss=confirmation.time_to_loss,
        unreached_loss=confirmation.unreached_loss,
        price_per_hour=sweep.spec.production.price_per_hour if sweep.spec.production else None,
        unknown_metrics=tuple(name for name in sweep.spec.metrics() if not is_known_metric(name)),
        yardstick=table.yardstick,
        winner=table.records[winner] if winner is not None else None,
        is_tune=sweep.spec.traits.is_of_changes,
        is_provisional=confirmation.is_provisional,
        is_verified=winner is not None and verification.read(table.records[winner]) is not None,
        ties=tuple(sweep.name_of(table.records[number]) for number in confirmation.ties),
        ratio=ratios.get(winner) if winner is not None else None,
        undecided=leader if winner is None else None,
        baseline_throughput=confirmed[BASELINE].throughput if BASELINE in confirmed else None,
        unconfirmed=quickest if BASELINE not in confirmed else None,
        per_size=tuple(
            row(work_title(r.config.work(), common), r)
            for r in sorted(sizes.values(), key=lambda r: -(r.metric("throughput") or 0))
        ),
        per_loader=tuple(row(kind, r) for kind, r in by_kind),
        counts=counts_of(records),
        production_samples=sweep.spec.production.samples if sweep.spec.production else None,
        records=tuple(records),
        disturbances=confirmation.disturbances,
        objectives=tuple(objective.metric for objective in objectives),
        front=tuple(row("", r) for r in front),
        picked=pick(front, objectives, rule),
        rule=rule,
        varied=sweep.varied_names(),
        infeasible=tuple(sweep.name_of(table.records[number]) for number in confirmation.infeasible),
        losses={r.number: losses_of(r) for r in records if r in (base, quickest) or r.number == winner},
    )


def _work(record: TrialRecord) -> str:
    return record.config.work_key()


def _kind(record: TrialRecord) -> str:
    return record.config.loader.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSweep:
    """A sweep in a list, read from its specification and its result, but not from its trials.

    Attributes:
        trials: Number of searched trials, whatever their outcome.
        ratio: The winner's confirmed ratio; None if there is none.
    """

    name: str
    state: str
    device: str
    trials: int
    ratio: float | None


def listed_sweep(journal: Journal) -> ListedSweep:
    """Returns a sweep's entry for a list.

    Raises:
        EnvironmentStopError: One of its files is damaged.
    """
    document = journal.read()
    spec = journal.spec(document)
    state, result = _state_of(journal)
    searched = journal.num_trials() - len(spec.references())
    confirmation = result.confirmation if result else ConfirmationResult(winner=None)
    return ListedSweep(
        name=journal.name,
        state=state,
        device=document["about"]["device"],
        trials=max(0, searched),
        ratio=next(
            (ratio.ratio for ratio in confirmation.ratios if ratio.trial == confirmation.winner), None
        ),
    )


def _state_of(journal: Journal) -> tuple[str, SweepResult | None]:
    """Returns `finished`, `stopped` or `unfinished`, and the result that goes with it."""
    ended, stopped = journal.result(), journal.stopped_result()
    if ended is not None:
        return "finished", ended
    return ("unfinished" if stopped is None else "stopped"), stopped
