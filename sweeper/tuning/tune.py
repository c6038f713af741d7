"""A tune without a terminal: races changes to a script, and hands over the best."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sweeper.core.job import read_job
from sweeper.core.progress import SilentProgress
from sweeper.core.record import BASELINE, TrialRecord
from sweeper.core.workload import script_of
from sweeper.errors import UserError
from sweeper.exports import verification
from sweeper.results.decision_lines import decision_lines
from sweeper.results.run_lines import changed_run_lines, run_lines
from sweeper.scaffold.command_space import Proposal, help_of, propose
from sweeper.schema import load
from sweeper.script.changes import BATCH_SIZE
from sweeper.script.changes.rows.dataset_file import KEPT_FOLDER
from sweeper.script.run.warm import read_warm
from sweeper.script.run.watch import watch
from sweeper.sweep.folder.catalog import latest_sweep, require_schema
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.folder.load import LoadedSweep
from sweeper.sweep.hints import place_lines, unsent_lines
from sweeper.sweep.observer import Status, SweepObserver
from sweeper.sweep.run import Phases, SweepRun, run_sweep
from sweeper.sweep.start.bootstrap import shared_cache
from sweeper.sweep.supervisor import run_phases
from sweeper.system.environment import pass_env_names, script_held_back_line
from sweeper.system.flock import open_locked, take_lock
from sweeper.telemetry.gpu_advice import gpus_for
from sweeper.tracking.mlflow import MlflowTracker, start_preload
from sweeper.tuning import words
from sweeper.tuning.gains import (
    add_refusals,
    gains_of,
    has_failed,
    has_refused,
    largest_gain,
    start_cost,
    untried_changes,
)
from sweeper.tuning.handover import TuneObserver, hand_over_winner, report_files
from sweeper.tuning.narrator import Narrator
from sweeper.tuning.options import TuneOptions
from sweeper.tuning.processes import MIN_SECONDS, SHARE, compare_processes, num_processes, process_lines
from sweeper.tuning.race import ChangesRace, changes_of
from sweeper.tuning.result import TuneResult
from sweeper.tuning.search_space import batch_refusal, search_space
from sweeper.tuning.specification import specification

RACE_SHARE = 0.5
"""Share of the time that the race has, if the script's options are searched after it."""
MIN_MINUTES = 1.0
"""Fewest minutes of that search."""
SHORTEST_MINUTES = 0.05
"""Fewest minutes that a race may be given, however long it took to begin."""


@contextlib.contextmanager
def removed_after_use(folder: Path) -> Iterator[None]:
    """Removes a folder that tunes at the same time may share, once the last of them has ended."""
    folder.mkdir(parents=True, exist_ok=True)
    with open_locked(Path(f"{folder}.lock"), shared=True) as lock:
        try:
            yield
        finally:
            with contextlib.suppress(BlockingIOError):
                take_lock(lock, wait=False)
                shutil.rmtree(folder, ignore_errors=True)


class Tune:
    """Makes a script faster without editing it, and verifies that it trains the same.

    The same options continue a tune that was interrupted.
    """

    def __init__(self, options: TuneOptions, observer: TuneObserver) -> None:
        self._options, self._observer = options, observer
        self._say = observer.line
        self._began_s = time.monotonic()
        # Lines that are not said again.
        self._earlier_lines: Sequence[str] = ()

    def run(self, *, dry: bool = False) -> TuneResult:
        """Races the changes and hands the best over.

        Args:
            dry: Whether to end before the race.

        Raises:
            TrialFailedError: The script cannot be watched.
            SweeperError: The sweep cannot go on; what was measured is kept.
        """
        options = self._options
        if line := script_held_back_line(os.environ):
            self._say(line)
        if (latest := None if options.new else latest_sweep(options.home, options.name)) is not None:
            require_schema(latest, "continue")
        if shutil.which(options.command[0]) is None:
            raise UserError(
                f"`command` must start with a program that can be run, but got {options.command[0]!r}"
                " (No such file or directory). Give its path, or install it."
            )
        with gpus_for(options.command, self._say) as self._earlier_lines:
            if dry:
                return self._offer()
            with removed_after_use(shared_cache(options.home) / KEPT_FOLDER):
                return self._race_and_search(latest)

    def _race_and_search(self, latest: Journal | None) -> TuneResult:
        """Races the changes, searches where that is asked for, and hands the best over.

        Args:
            latest: The sweep that an earlier call has left, if this one continues it.
        """
        options = self._options
        if latest is None or not latest.has_ended:
            self._say(words.plan_line(options.minutes))
        proposal = propose(options.line, help_of(options.line)) if options.with_flags else None
        if proposal is not None and not proposal.searched:
            self._say("None of the script's options is recognised, so none is searched.")
        is_searched = bool(proposal and proposal.searched) or options.allow_batch_size
        number = num_processes(options.command)
        share = 1.0 - SHARE * (number > 1)
        result = self._race(options.minutes * share * (RACE_SHARE if is_searched else 1.0))
        if is_searched and result.ran is not None and not result.is_stopped:
            result = self._search(result, result.ran, proposal)
        if number > 1 and result.ran is not None and result.ran.was_run and not result.is_stopped:
            result = self._compare_processes(result, number)
        return result

    def _compare_processes(self, result: TuneResult, number: int) -> TuneResult:
        """Compares the script with fewer processes, and says which number to use."""
        options = self._options
        seconds = 60 * (options.minutes - self._minutes())
        if seconds < MIN_SECONDS:
            return result
        self._say("")
        speeds = compare_processes(
            options.command,
            result.watched,
            seconds,
            self._say,
            keeps_samples=not options.allow_batch_size,
        )
        try:
            lines = tuple(process_lines(number, list(speeds)))
        except KeyboardInterrupt:
            return dataclasses.replace(result, is_stopped=True)
        for line in lines:
            self._say(line)
        return dataclasses.replace(result, lines=(*result.lines, *lines))

    def _offer(self) -> TuneResult:
        """Watches the script, and says what a race would try."""
        options = self._options
        self._say("Watching the script as it is, then taking its steps apart.")
        # The script's output is not the tune's.
        with tempfile.TemporaryFile("w", encoding="utf-8") as log, contextlib.redirect_stdout(log):
            watched = watch(options.command, Path.cwd(), SilentProgress(), cache=shared_cache(options.home))
        # A race decides before the steps are taken apart.
        changes = tuple(changes_of(options, dataclasses.replace(watched, diagnosis=None)))
        for line in (*words.watched_lines(watched), *words.offer_lines(changes)):
            self._say(line)
        proposal = propose(options.line, help_of(options.line)) if options.with_flags else None
        names = [dimension.name for dimension in proposal.searched] if proposal is not None else []
        if options.allow_batch_size and not batch_refusal(watched) and BATCH_SIZE.name not in names:
            names.append(BATCH_SIZE.name)
        if names:
            self._say(f"A search on top would try {', '.join(names)}.")
        return TuneResult(name=options.name, watched=watched, changes=changes)

    # -- race and search --------------------------------------------------------------------------

    def _race(self, minutes: float) -> TuneResult:
        """Races the changes.

        Args:
            minutes: The time for it, from the beginning of the tune on.
        """
        options = self._options
        narrator = Narrator(self._say, lambda: time.monotonic() - self._began_s)
        plan = specification(options, max(SHORTEST_MINUTES, minutes - self._minutes()))
        done, lines, unsent = self._run(plan, ChangesRace(options, narrator.follow).run)
        sweep = done.sweep
        watched = sweep.summary.records[BASELINE].measurement
        warm = read_warm(sweep.journal.trial_folder(BASELINE))
        assert warm is not None
        result = TuneResult(
            name=sweep.journal.name,
            watched=watched or warm.measurement,
            changes=tuple(add_refusals(sweep, changes_of(options, warm.measurement))),
            gains=tuple(gains_of(sweep)),
            lines=lines,
            unsent=unsent,
            ran=done,
            is_stopped=done.stopped,
        )
        return self._conclude(result, sweep)

    def _search(self, result: TuneResult, raced: SweepRun, proposal: Proposal | None) -> TuneResult:
        """Searches the script's own options and its batch size, on top of the changes that won.

        Args:
            proposal: The script's own options, if they are searched.
        """
        options, sweep = self._options, raced.sweep
        winner = sweep.confirmation.winner if result.export else None
        job = read_job(sweep.journal.trial_folder(BASELINE if winner is None else winner))
        # What a race has taken that ended before is not known here.
        spent = self._minutes() if raced.was_run else RACE_SHARE * options.minutes
        minutes = max(min(MIN_MINUTES, (1 - RACE_SHARE) * options.minutes), options.minutes - spent)
        plan = search_space(
            options,
            script_of(job),
            job.config.args or {},
            result.watched,
            minutes,
            name=f"{sweep.journal.name}-{options.name_of_search}",
            proposal=proposal,
        )
        searched_names = plan["space"] if plan is not None else ()
        if options.allow_batch_size and BATCH_SIZE.name not in searched_names:
            self._say(f"Larger batches are not searched: {batch_refusal(result.watched)}.")
        if plan is None:
            return result
        self._say("")
        latest = None if options.new else latest_sweep(options.home, plan["name"])
        if latest is None or not latest.has_ended:
            self._say(f"Searching {', '.join(searched_names)} on top: {minutes:.1f} minutes at most.")
        try:
            done, lines, unsent = self._run(plan)
        except KeyboardInterrupt:
            self._say("The search on top was stopped before it had a result; the same command continues it.")
            return dataclasses.replace(result, is_stopped=True)
        searched = dataclasses.replace(
            result,
            lines=(*result.lines, *lines),
            unsent=(*result.unsent, *unsent),
            searched=done,
            is_stopped=done.stopped,
        )
        winner = done.sweep.confirmation.winner
        if winner is None or (done.stopped and not words.is_confirmed(done.sweep)):
            return searched
        if result.export and (line := words.product_line(sweep, done.sweep)):
            self._say(line)
            searched = dataclasses.replace(searched, lines=(*searched.lines, line))
        export = hand_over_winner(done.sweep, winner, options.home, self._observer)
        return dataclasses.replace(searched, export=export)

    def _minutes(self) -> float:
        """Returns the minutes since the tune began."""
        return (time.monotonic() - self._began_s) / 60

    def _run(
        self, plan: dict[str, Any], phases: Phases | None = None
    ) -> tuple[SweepRun, tuple[str, ...], tuple[str, ...]]:
        """Runs a sweep; returns it, its decision in lines, and what MLflow lacks.

        Args:
            plan: Its specification, as plain values.
            phases: Its phases; by default, those of a search, whose trials are said.
        """
        options = self._options
        if names_passed := pass_env_names(os.environ):
            plan["execution"] = {"pass_env": list(names_passed)}
        tracker = MlflowTracker(options.home, options.uri)
        start_preload()
        brief = _BriefObserver(self._observer, self._earlier_lines, says_trials=phases is None)
        done = run_sweep(
            options.home,
            load(plan),
            tracker,
            brief,
            new=options.new,
            finish=lambda sweep: report_files(sweep, self._observer),
            phases=phases or run_phases,
        )
        self._earlier_lines = [*self._earlier_lines, *brief.lines]
        sweep = done.sweep
        if not done.was_run:
            self._say(f"`{sweep.journal.name}` is already finished; nothing was run.")
        self._say("")
        decision = decision_lines(sweep.summary)
        for line in decision:
            self._say(line)
        for line in place_lines(sweep, tracker, options.home):
            self._observer.command(line)
        unsent = [] if done.stopped else unsent_lines(done, tracker, options.uri, options.home)
        for line in unsent:
            self._observer.command(line)
        return done, tuple(decision), tuple(unsent)

    # -- hand over --------------------------------------------------------------------------------

    def _conclude(self, result: TuneResult, sweep: LoadedSweep) -> TuneResult:
        """Says what each change brings, and hands a winner over."""
        for line in words.outside_lines(result.watched):
            self._say(line)
        self._say("")
        for line in words.ladder_lines(result.gains, result.changes):
            self._say(line)
        if sweep.confirmation.winner is None:
            # What trains differently may well be faster.
            gain = None if sweep.confirmation.infeasible else largest_gain(sweep)
            left = untried_changes(sweep, result.changes)
            nothing = tuple(
                words.bound_lines(gain, left, has_refused=has_refused(sweep), has_failed=has_failed(sweep))
            )
            bound = "" if gain is None else nothing[0]
            if not sweep.confirmation.infeasible:
                nothing += self._run_lines(sweep, None)
            for line in nothing:
                self._say(line)
            result = dataclasses.replace(result, lines=(*result.lines, *nothing), bound=bound)
        numbers = (sweep.confirmation.winner, *sweep.confirmation.infeasible)
        records = [sweep.table.records[number] for number in numbers if number is not None]
        checks = ((record, check) for record in records if (check := verification.read(record)) is not None)
        record, verified = next(checks, (None, None))
        if record is None or verified is None:
            return result
        stack = words.stack_lines(verified, result.changes)
        for line in stack:
            self._say(line)
        result = dataclasses.replace(result, lines=(*result.lines, *stack), fault=verified.difference)
        if result.fault:
            return result
        if (cost := start_cost(sweep, record.number)) is not None:
            line = words.start_line(cost)
            self._say(line)
            result = dataclasses.replace(result, lines=(*result.lines, line))
        of_run = self._run_lines(sweep, record.number, cost.first if cost is not None else 0.0)
        for line in of_run:
            self._say(line)
        result = dataclasses.replace(result, lines=(*result.lines, *of_run))
        export = hand_over_winner(sweep, record.number, self._options.home, self._observer)
        return dataclasses.replace(result, export=export)

    def _run_lines(self, sweep: LoadedSweep, winner: int | None, start_s: float = 0.0) -> tuple[str, ...]:
        """Returns what a whole run takes, and its parts that no change mends.

        Args:
            start_s: Seconds that the winner's changes take at the start.
        """
        measured = sweep.table.records[BASELINE].measurement
        epochs, price = self._options.epochs, self._options.price
        if measured is None:
            return ()
        ratio = next((one.ratio for one in sweep.confirmation.ratios if one.trial == winner), None)
        if ratio is None:
            return tuple(run_lines(measured, num_epochs=epochs, price=price))
        lines = changed_run_lines(measured, ratio, start_s=start_s, num_epochs=epochs, price=price)
        return tuple(lines)


class _BriefObserver:
    """Passes on what a sweep says, but for what is said elsewhere: a race's trials, and earlier lines.

    Attributes:
        lines: The lines that were passed on.
    """

    def __init__(self, observer: SweepObserver, earlier_lines: Sequence[str], *, says_trials: bool) -> None:
        self._observer, self._earlier_lines, self._says_trials = observer, earlier_lines, says_trials
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        """Passes a line on, unless it was said before."""
        if text not in self._earlier_lines:
            self.lines.append(text)
            self._observer.line(text)

    def trial(self, record: TrialRecord, name: str, speedup: float | None) -> None:
        """Passes a trial of a search on."""
        if self._says_trials:
            self._observer.trial(record, name, speedup)

    def status(self, status: Status) -> None:
        """Passes the status on."""
        self._observer.status(status)
