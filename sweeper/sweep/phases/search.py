"""Runs the search phase: asks, runs and tells until a stopping rule holds."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Container, Iterable, Iterator

from sweeper.core.config import OPEN_SECTIONS, Scalar, TrialConfig
from sweeper.core.job import SEARCH_STAGE
from sweeper.core.measurement import Failure, FailureKind
from sweeper.core.record import SearchResult, TrialRecord
from sweeper.core.samplers import AUTO, CLIMB
from sweeper.errors import EnvironmentStopError
from sweeper.results.numbers.trial_table import TrialTable, is_passed_over
from sweeper.schema import SweepSpec
from sweeper.schema.space import acts
from sweeper.search import Hints, Searcher, SpaceExhaustedError
from sweeper.search.guidance import ACCUMULATION, RECOMPUTATION
from sweeper.sweep.folder.journal import FINAL_RACE, NumberedJob
from sweeper.sweep.job_runner import TICK_SECONDS
from sweeper.sweep.memory_limit import Capacity
from sweeper.sweep.phases.dropped_values import (
    FAILURES,
    Choice,
    FailingValues,
    Left,
    RefusedValues,
    idle_values,
    without_numbers,
)
from sweeper.sweep.phases.early_rounds import EarlyRounds
from sweeper.sweep.phases.reserve import seconds_after_search
from sweeper.sweep.start.context import SweepContext
from sweeper.sweep.start.setup import Machine, left_line
from sweeper.sweep.trial_runner import TrialRunner
from sweeper.system.failpoints import failpoint

SIZES_SHARE = 0.1
"""Share of the sweep's time that trials at other sizes of the model or the data may take: none can win."""
SLACK = 0.1
"""Share of the time that may be left over when a search that had ended before continues."""
MAX_IN_A_ROW = 20
"""Configurations passed over in a row, after which the next one runs even if it is expected not to fit."""
UNLIKELY = "may not fit"
"""Reason for a trial of a configuration that was passed over before."""
MAX_OFFERS = 3
"""Largest number of configurations passed over for which a smaller batch runs instead."""
SAME_ERROR_STOPS = 3
"""Number of trials with the same error, before any is measured, that show that the code is broken."""


def hints_of(machine: Machine) -> Hints:
    """Returns the facts for first guesses, which are the same if the search continues later."""
    return Hints(device=machine.devices[0].name, cores=machine.usable_cpus)


class Search:
    """Asks for configurations, runs them and tells the sampler their results.

    Every decision follows from the records, so a search that was cut off continues as if it had not been.
    """

    def __init__(
        self,
        context: SweepContext,
        trials: TrialRunner,
        spec: SweepSpec,
        passed: Iterable[Choice] = (),
        unfinished: Iterable[NumberedJob] = (),
    ) -> None:
        """Enters the trials that have ended.

        Args:
            spec: The specification with the space to search.
            passed: Choices that ran in the preflight.
            unfinished: Trials that were cut off, which run again before any other.
        """
        self._context, self._trials = context, trials
        self._table = trials.table
        self._whole = self._spec = spec
        self._failing = FailingValues(self._whole.space, passed)
        self._refused = RefusedValues(self._whole.space)
        for record in self._table.finished_trials():
            self._failing.add(record)
            self._refused.add(record)
            self._fix_result(record)
        self._left: Left = {}
        self._idle: Left = {}
        self._searcher = self._new_searcher()
        headroom = self._whole.search.memory_headroom
        self._capacity = Capacity(self._table, context.machine, headroom, context.past)
        self._keys = _TakenKeys(self._table, self._capacity)
        self._early = EarlyRounds(context, trials)
        self._has_confirmed = context.journal.race_folder(FINAL_RACE).is_dir()
        self._unfinished = sorted(unfinished, key=lambda entry: entry.number)

    def _new_searcher(self) -> Searcher:
        """Returns a searcher for the space without the choices that have left it.

        The table keeps the whole space: a search result has a value for each of its parameters.
        """
        old_choices = {*self._left_values(self._left), *self._left_values(self._idle)}
        self._left, self._idle = self._failing.choices_to_drop(), self._idle_values()
        self._spec = self._whole
        for left, why in (
            (self._left, f"{FAILURES} trials failed alike, and none succeeded"),
            (self._idle, "no effect"),
        ):
            for name, gone in left.items():
                self._spec = self._spec.without({name: list(gone)})
                if not old_choices.issuperset(self._left_values({name: gone})):
                    self._context.observer.line(left_line(name, gone, why))
        return Searcher(self._context.journal.study, self._spec, self._table.results, self._hints())

    def _idle_values(self) -> Left:
        gone = self._failing.choices_to_drop()
        if self._whole.traits.names_are_fields:
            return self._refused.choices_to_drop(gone)
        return idle_values(self._table.finished_trials(), self._whole, gone)

    @staticmethod
    def _left_values(left: Left) -> Iterator[Choice]:
        return ((name, value) for name, gone in left.items() for value in gone)

    def _hints(self) -> Hints:
        base = self._table.yardstick
        measured = base.baseline.measurement if base else None
        reached = base.baseline.metric(self._whole.objectives[0].metric) if base else None
        return dataclasses.replace(
            hints_of(self._context.machine),
            samples=measured.train_samples if measured else 0,
            baseline=reached or 0.0,
            past=self._context.past,
        )

    def run(self) -> str:
        """Searches, and returns why it ended."""
        self._show()
        if len(self._spec.objectives) > 1:
            self._context.observer.line("With several objectives, no trial is ended early.")
        try:
            # Running trials may show that more are needed.
            while not (reason := self._fill()) or self._trials.jobs.running:
                self._collect()
        finally:
            self._searcher.close()
        return reason

    def _fill(self) -> str:
        """Starts trials while there is room; returns why the search is over, if so."""
        jobs = self._trials.jobs
        while jobs.has_room:
            if self._unfinished:
                entry = self._unfinished.pop(0)
                self._trials.resume(entry)
                if entry.number not in jobs.running:
                    self._tell(entry.number)
            elif reason := self._ask():
                return reason
        return ""

    def _collect(self) -> None:
        """Waits for trials to end and enters them, refilling each slot before the next."""
        trials = self._trials
        if not trials.jobs.running:
            # No worker has started yet, or all have ended.
            trials.progress.tick()
            time.sleep(TICK_SECONDS)
        for number, job, outcome in trials.jobs.wait():
            record = trials.finish(number, job, outcome)
            self._tell(number)
            self._failing.add(record)
            self._refused.add(record)
            if self._failing.choices_to_drop() != self._left or self._idle_values() != self._idle:
                self._searcher.close()
                self._searcher = self._new_searcher()
            self._stop_on_repeated_error()
            self._count()
            if not trials.jobs.running and self._early.run_if_due():
                self._show()
            self._fill()

    def _show(self) -> None:
        self._trials.progress.begin("searching", self._spec.search.trials)
        self._count()

    def _count(self) -> None:
        self._trials.progress.advance_to(self._table.num_searched - len(self._trials.jobs.running))

    def _ask(self) -> str:
        """Starts a trial or passes over a configuration; returns why the search is over, if so."""
        trials, table = self._trials, self._table
        if reason := self._reason_to_stop():
            return reason
        self._limit_sizes()
        left = self._last_gain()
        risk = self._risk() if left is not None else None
        if left is not None and risk is None:
            return f"the expected gain was at most {100 * left:.2g}% after {self._num_trials()}"
        number = table.last + 1
        start = self._next_start()
        if start is not None:
            config, how = start
            why = f"{how}: trial {table.last} was not expected to fit"
            trials.start(number, SEARCH_STAGE, config, {}, why)
            return ""
        if risk is not None:
            why = f"{UNLIKELY}: nothing else promises more"
            trials.start(number, SEARCH_STAGE, risk.config, risk.params or {}, why)
            return ""
        try:
            params, why = self._searcher.ask(number, self._keys)
        except SpaceExhaustedError as error:
            return f"{error} after {self._num_trials()}"
        failpoint("asked")
        config = self._spec.config(params)
        params = {**self._decided_values(), **params}
        objection = self._capacity.objection(config) if self._in_a_row() < MAX_IN_A_ROW else None
        if objection is None:
            trials.start(number, SEARCH_STAGE, config, params, why)
        else:
            trials.pass_over(number, config, params, why, objection)
            self._tell(number)
        return ""

    def _decided_values(self) -> dict[str, Scalar]:
        """Returns a value for each parameter that left the space with one choice remaining."""
        now, whole = self._spec, self._whole.space
        return {
            name: now.fix.get(name, whole[name].first_value()) for name in whole.keys() - now.space.keys()
        }

    def _stop_on_repeated_error(self) -> None:
        """Ends a sweep whose first searched trials fail with the same error: the code is broken.

        Once a trial has been measured, the configurations are at fault. Failures that are explained by a
        choice that has left the space do not count.

        Raises:
            EnvironmentStopError: The same error ended `SAME_ERROR_STOPS` trials.
        """
        if self._table.num_measured:
            return
        searched = [
            record for record in self._table.searched_trials() if not self._failing.explains(record.config)
        ]
        errors = [
            record.failure.message for record in searched if record.failure and _is_users(record.failure)
        ]
        alike = [error for error in errors if without_numbers(error) == without_numbers(errors[-1])]
        if len(alike) >= SAME_ERROR_STOPS:
            raise EnvironmentStopError(
                f"the same error ended {SAME_ERROR_STOPS} trials: {errors[-1]}. "
                f"The full output is in {self._context.journal.folder}/trials/*/worker.log."
            )

    def _reason_to_stop(self) -> str:
        trials, search = self._trials, self._spec.search
        count = self._table.num_searched
        if count >= search.trials:
            return f"all {count} trials are done" if count != 1 else "its only trial is done"
        left = trials.budget.seconds_left
        if left is not None:
            left -= seconds_after_search(self._context, trials, self._spec)
        # A sweep cut off during confirmation must not go on searching in the time that was never charged.
        min_seconds = (
            SLACK * 60 * (search.minutes or 0.0) if self._has_confirmed else trials.budget.usual_seconds
        )
        if left is not None and left < min_seconds:
            return f"the time is up after {self._num_trials()}"
        if search.patience is not None and self._is_no_better(search.patience):
            return f"{search.patience} trials in a row were no better"
        return ""

    def _num_trials(self) -> str:
        count = self._table.num_searched
        return f"{count} trial{'s' if count != 1 else ''}"

    def _limit_sizes(self) -> None:
        """Drops the starts at other sizes once another one would take more than their share of the time."""
        base, minutes = self._table.yardstick, self._spec.search.minutes
        num_left = self._searcher.num_other_sizes(self._keys)
        if not num_left or base is None or minutes is None:
            return
        base_key = base.baseline.config.work_key()
        others = (
            record.outcome for record in self._table.searched_trials() if record.config.work_key() != base_key
        )
        spent = [outcome.seconds for outcome in others if outcome is not None]
        if sum(spent) + max(spent, default=0.0) > SIZES_SHARE * 60 * minutes:
            self._searcher.drop_other_sizes()
            names = ", ".join(name for name in self._spec.space if name.partition(".")[0] in OPEN_SECTIONS)
            self._context.observer.line(
                f"{names}: {num_left} of the other sizes will not run: together, they would take "
                f"more than {SIZES_SHARE:.0%} of the time."
            )

    def _last_gain(self) -> float | None:
        """Returns the gain that can still be expected if it is too small to continue; else None."""
        search = self._spec.search
        if search.regret is None or search.sampler not in (AUTO, CLIMB):
            return None
        # The gain of running trials is not known yet.
        expected = self._searcher.expected_gain(_TakenKeys(self._table, self._capacity, ended=True))
        return expected if expected is not None and expected <= search.regret else None

    def _risk(self) -> TrialRecord | None:
        """Returns a configuration that was passed over but is worth a last trial, though it may not fit."""
        table, regret = self._table, self._spec.search.regret or 0.0
        passed_over = (table.records[number] for number in table.passed_over.values())
        refused = [record for record in passed_over if record.config.key() not in table.trial_numbers]
        gains = self._searcher.gains_of([record.config for record in refused])
        chances = (self._capacity.chance(record.config) for record in refused)
        worth = [gain * chance for gain, chance in zip(gains, chances, strict=True)]
        max_worth = max(worth, default=0.0)
        return refused[worth.index(max_worth)] if max_worth > regret else None

    def _is_no_better(self, patience: int) -> bool:
        """Returns whether the last `patience` searched trials that ended were no better.

        As many as are running now were asked for before the best trial's result was known: they do not count.
        """
        best = self._table.best_trial()
        last = (best.number if best is not None else 0) + len(self._trials.jobs.running)
        since = itertools.takewhile(
            lambda record: record.number > last, reversed(self._table.records.values())
        )
        ended = (record for record in since if record.stage == SEARCH_STAGE and record.outcome is not None)
        count = sum(1 for _ in itertools.islice((r for r in ended if not is_passed_over(r)), patience))
        return count >= patience

    def _in_a_row(self) -> int:
        """Returns how many configurations were passed over since the last trial."""
        return sum(1 for _ in itertools.takewhile(is_passed_over, reversed(self._table.records.values())))

    def _next_start(self) -> tuple[TrialConfig, str] | None:
        """Returns the last configuration, if passed over, in a form with less memory, and how; else None."""
        table = self._table
        last = table.records[table.last]
        if not is_passed_over(last) or table.num_passed_over > MAX_OFFERS:
            return None
        if self._context.past is not None:
            # The earlier sweep shows what fits, and the searcher asks for that next.
            return None
        leaner = {
            RECOMPUTATION: self._recompute(last.config),
            ACCUMULATION: self._capacity.shrink(last.config),
        }
        for how, config in leaner.items():
            if config is not None and config.key() not in self._keys:
                return config, how
        return None

    def _recompute(self, config: TrialConfig) -> TrialConfig | None:
        """Returns a configuration with recomputed activations; None if not a choice, or if it may not fit."""
        name, space = "activation_checkpointing", self._spec.space
        is_choice = name in space and space[name].contains(True) and acts(name, space, config.flatten())
        if config.activation_checkpointing or not is_choice:
            return None
        candidate = config.replace({name: True})
        return candidate if self._capacity.objection(candidate) is None else None

    def _tell(self, number: int) -> None:
        if number in self._table.results:
            return
        result = self._fix_result(self._table.records[number])
        failpoint("told")
        if result is not None:
            self._searcher.tell(number, result)
            failpoint("studied")

    def _fix_result(self, record: TrialRecord) -> SearchResult | None:
        """Makes a trial's result for the sampler final, and returns it; None if it is outside the space."""
        number = record.number
        params = record.params or self._whole.params_of(record.config)
        if number not in self._table.results and params:
            result = self._table.new_result(number, params)
            self._context.journal.write_search_result(number, result)
            self._table.record_result(number, result)
        return self._table.results.get(number)


def _is_users(failure: Failure) -> bool:
    return failure.kind in (FailureKind.USER_ERROR, FailureKind.CRASH, FailureKind.NO_RESULT)


class _TakenKeys(Container[str]):
    """Keys of the configurations that need not be asked for again.

    A configuration that was passed over may be asked for again once more is known about what fits.
    """

    def __init__(self, table: TrialTable, capacity: Capacity, *, ended: bool = False) -> None:
        """Uses the table's state at the time of each question.

        Args:
            ended: Whether to leave out running trials.
        """
        self._table, self._capacity, self._ended = table, capacity, ended

    def __contains__(self, key: object) -> bool:
        table = self._table
        assert isinstance(key, str)
        if (number := table.trial_numbers.get(key)) is not None:
            return not self._ended or table.records[number].outcome is not None
        number = table.passed_over.get(key)
        return number is not None and self._capacity.objection(table.records[number].config) is not None
