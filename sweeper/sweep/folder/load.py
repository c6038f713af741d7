"""Loads a sweep from its folder to show, compare or export it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sweeper.core.codec import decode
from sweeper.core.job import CONFIG, OUTCOME, RESTORE_HINT, is_retried, read_job, read_outcome
from sweeper.core.measurement import Outcome, Quality, Report
from sweeper.core.record import BASELINE, TrialRecord
from sweeper.exports import verification
from sweeper.race.log import Round
from sweeper.race.tally import trimmed_mean
from sweeper.results.numbers.confirmation import Ratio
from sweeper.results.numbers.confirmation_result import ConfirmationResult
from sweeper.results.numbers.decision import Decision, decide
from sweeper.results.numbers.labels import run_name
from sweeper.results.numbers.sensitivity import Sensitivity, sensitivity
from sweeper.results.numbers.summarise import SweepFindings, summarise
from sweeper.results.numbers.summary import Summary
from sweeper.results.numbers.trial_table import NUM_SEEDS, TrialTable
from sweeper.schema import SweepSpec
from sweeper.schema.enough_steps import with_enough_steps
from sweeper.sweep.folder.journal import (
    ENDS_ANEW,
    FINAL_RACE,
    INTERIM_RACE,
    INTERIM_RESULT,
    RESULT,
    Journal,
    NumberedJob,
)
from sweeper.sweep.folder.result import SweepResult
from sweeper.system.files import reading
from sweeper.tracking import Confirmation


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
        winner = self.confirmation.winner
        findings = SweepFindings(
            name=self.journal.name,
            state=self.state,
            device=self.about["device"],
            reason=self.result.search_end if self.result else "",
            synthetic=self.about["synthetic"],
            spec=self.spec,
            table=self.table,
            confirmation=self.confirmation,
            throughputs={number: one.throughput for number, one in self.confirmations().items()},
            varied=self.varied_names(),
            is_verified=winner is not None and verification.read(self.table.records[winner]) is not None,
        )
        return summarise(findings)

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
        return self.race or self.journal.rounds_in_result()

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
    document = journal.read_sweep_file()
    spec = journal.spec(document)
    table = TrialTable(spec)
    losses = _enter_qualities(table, journal, "loss")
    table.enter_losses(losses)
    enter_trials(table, journal, journal.trials())
    state, result = _state_of(journal)
    if result is not None and result.confirmation.winner is not None:
        _enter_qualities(table, journal, f"loss-{result.confirmation.winner}")
    sweep = LoadedSweep(journal, spec, document["about"], table, result, state)
    path = journal.folder / (RESULT if state == "finished" else INTERIM_RESULT)
    with reading(path, ENDS_ANEW):
        _check_result(sweep)
    return sweep


def _enter_qualities(table: TrialTable, journal: Journal, name: str) -> tuple[float, ...]:
    """Enters the qualities over seeds in the folders `setup/<name>-<i>`; returns their losses."""
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


def enter_trials(table: TrialTable, journal: Journal, entries: Iterable[NumberedJob]) -> list[NumberedJob]:
    """Enters the folder's trials in the table; returns those that have begun and have no final outcome."""
    unfinished, records = [], []
    for entry in entries:
        outcome = entry.outcome
        if isinstance(outcome, Report):
            with reading(entry.folder / OUTCOME, RESTORE_HINT):
                raise ValueError("it is not the outcome of a trial")
        if entry.result is None and is_retried(entry.job, outcome):
            outcome = None
        records.append(journal.trial_record(entry.number, entry.job, outcome))
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


def _check_result(sweep: LoadedSweep) -> None:
    """Makes sure that every trial that a sweep's result names has an outcome.

    Raises:
        KeyError: One is not there.
        ValueError: One has none.
    """
    confirmation = sweep.confirmation
    for number in (confirmation.winner, *sweep.ratios(), *confirmation.ties, *confirmation.infeasible):
        if number is not None and sweep.table.records[number].outcome is None:
            raise ValueError(f"it names trial {number}, which has no outcome")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSweep:
    """A sweep in a list, read from its specification and its result, but not from its trials.

    Attributes:
        trials: Number of searched trials, whatever their outcome.
        ratio: The winner's ratio; None if there is none.
        is_provisional: Whether no new processes have confirmed it.
    """

    name: str
    state: str
    device: str
    trials: int
    ratio: float | None
    is_provisional: bool


def listed_sweep(journal: Journal) -> ListedSweep:
    """Returns a sweep's entry for a list.

    Raises:
        EnvironmentStopError: One of its files is damaged.
    """
    document = journal.read_sweep_file()
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
        is_provisional=confirmation.is_provisional,
    )


def _state_of(journal: Journal) -> tuple[str, SweepResult | None]:
    """Returns `finished`, `stopped` or `unfinished`, and the result that goes with it."""
    ended, stopped = journal.result(), journal.interim_result()
    if ended is not None:
        return "finished", ended
    return ("unfinished" if stopped is None else "stopped"), stopped
