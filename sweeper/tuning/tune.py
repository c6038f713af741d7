"""A tune without a terminal: races changes to a script, and hands over the best."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Sequence

from sweeper.core.record import BASELINE
from sweeper.errors import UserError
from sweeper.exports import verification
from sweeper.interventions.kept import FOLDER as KEPT_FOLDER
from sweeper.results.decision_lines import decision_lines
from sweeper.script.warm import read_warm
from sweeper.spec import SweepSpec, load
from sweeper.sweep.bootstrap import shared_cache
from sweeper.sweep.commands import place_lines, unsent_lines
from sweeper.sweep.observer import Observer as SweepObserver
from sweeper.sweep.observer import Status
from sweeper.sweep.run import Ran, run_sweep
from sweeper.sweep.store.catalog import latest_of_name, require_schema
from sweeper.sweep.store.load import LoadedSweep
from sweeper.system.environment import named, script_held_back_line
from sweeper.telemetry.gpu_lines import gpus_for
from sweeper.tracking.mlflow import MlflowTracker, start_preload
from sweeper.tuning import words
from sweeper.tuning.gains import gains_of, largest_gain, untried
from sweeper.tuning.handover import Observer, hand_over_winner, report_files
from sweeper.tuning.narrator import Narrator
from sweeper.tuning.options import TuneOptions
from sweeper.tuning.race import ChangesRace, changes_of
from sweeper.tuning.result import TuneResult
from sweeper.tuning.search import SearchTune
from sweeper.tuning.specification import specification


class Tune:
    """Makes a script faster without editing it, and verifies that it trains the same.

    The same options continue a tune that was interrupted.
    """

    def __init__(self, options: TuneOptions, observer: Observer) -> None:
        self._options, self._observer = options, observer
        self._say = observer.line
        self._began_s = time.monotonic()

    def run(self, *, dry: bool = False) -> TuneResult:
        """Races the changes and hands the best over.

        Args:
            dry: Whether to end before the race.

        Raises:
            TrialFailedError: The script cannot be watched.
            SweeperError: The sweep cannot go on; what was measured is kept.
        """
        options = self._options
        if dry or options.with_flags or options.allow_batch_size:
            # These are searches, which have no race yet in which arms join.
            return SearchTune(options, self._observer).run(dry=dry)
        if line := script_held_back_line(os.environ):
            self._say(line)
        if (latest := None if options.new else latest_of_name(options.home, options.name)) is not None:
            require_schema(latest, "continue")
        if shutil.which(options.command[0]) is None:
            raise UserError(
                f"`command` must start with a program that can be run, but got {options.command[0]!r}"
                " (No such file or directory). Give its path, or install it."
            )
        self._say(words.plan_line(options.minutes))
        with gpus_for(options.command, self._say) as said:
            try:
                return self._raced(said)
            finally:
                shutil.rmtree(shared_cache(options.home) / KEPT_FOLDER, ignore_errors=True)

    def _raced(self, said: Sequence[str]) -> TuneResult:
        """Races the changes.

        Args:
            said: Lines that were said before, and are not said again.
        """
        options = self._options
        tracker = MlflowTracker(options.home, options.uri)
        start_preload()
        narrator = Narrator(self._say, lambda: time.monotonic() - self._began_s)
        ran = run_sweep(
            options.home,
            self._spec(),
            tracker,
            _Brief(self._observer, said),
            new=options.new,
            finish=lambda sweep: report_files(sweep, self._observer),
            phases=ChangesRace(options, narrator.follow).run,
        )
        sweep = ran.sweep
        if not ran.ran:
            self._say(f"`{sweep.journal.name}` is already finished; nothing was run.")
        self._say("")
        decision = decision_lines(sweep.summary)
        for line in decision:
            self._say(line)
        for line in place_lines(sweep, tracker, options.home):
            self._observer.command(line)
        unsent = [] if ran.stopped else unsent_lines(ran, tracker, options.uri, options.home)
        for line in unsent:
            self._observer.command(line)
        return self._concluded(self._result(ran, decision, unsent), sweep)

    def _result(self, ran: Ran, decision: Sequence[str], unsent: Sequence[str]) -> TuneResult:
        options, sweep = self._options, ran.sweep
        watched = sweep.summary.records[BASELINE].measurement
        warm = read_warm(sweep.journal.trial_folder(BASELINE))
        assert warm is not None
        changes = changes_of(options, warm)
        return TuneResult(
            name=sweep.journal.name,
            watched=watched or warm.measurement,
            changes=tuple(changes),
            gains=tuple(gains_of(sweep)),
            lines=tuple(decision),
            unsent=tuple(unsent),
            ran=ran,
        )

    def _spec(self) -> SweepSpec:
        options = self._options
        minutes = options.minutes - (time.monotonic() - self._began_s) / 60
        plan = specification(options, minutes)
        if names_passed := named(os.environ):
            plan["execution"] = {"pass_env": list(names_passed)}
        return load(plan)

    # -- hand over --------------------------------------------------------------------------------

    def _concluded(self, result: TuneResult, sweep: LoadedSweep) -> TuneResult:
        """Says what each change brings, and hands a winner over."""
        self._say("")
        for line in words.ladder_lines(result.gains, result.changes):
            self._say(line)
        if sweep.confirmation.winner is None:
            # What trains differently may well be faster.
            gain = None if sweep.confirmation.infeasible else largest_gain(sweep)
            nothing = tuple(words.bound_lines(gain, untried(sweep, result.changes)))
            for line in nothing:
                self._say(line)
            result = dataclasses.replace(result, lines=(*result.lines, *nothing))
        among = (sweep.confirmation.winner, *sweep.confirmation.infeasible)
        record = next((sweep.table.records[number] for number in among if number is not None), None)
        verified = verification.read(record) if record is not None else None
        if record is None or verified is None:
            return result
        stack = words.stack_lines(verified, result.changes)
        for line in stack:
            self._say(line)
        result = dataclasses.replace(result, lines=(*result.lines, *stack), fault=verified.difference)
        if result.fault:
            return result
        export = hand_over_winner(sweep, record.number, self._options.home, self._observer)
        return dataclasses.replace(result, export=export)


class _Brief:
    """Passes on what a sweep says, but for what is said elsewhere: its trials, and earlier lines."""

    def __init__(self, observer: SweepObserver, said: Sequence[str]) -> None:
        self._observer, self._said = observer, said

    def line(self, text: str) -> None:
        """Passes a line on, unless it was said before."""
        if text not in self._said:
            self._observer.line(text)

    def trial(self, *_: object) -> None:
        """Does nothing."""

    def status(self, status: Status) -> None:
        """Passes the status on."""
        self._observer.status(status)
