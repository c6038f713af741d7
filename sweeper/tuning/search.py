"""A tune without a terminal: watches a script, proves changes to it, searches, confirms and hands over."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from sweeper.analysis.bottleneck import MIN_COST, launch_share
from sweeper.core.measurement import Measurement
from sweeper.core.progress import Silent
from sweeper.core.record import TrialRecord
from sweeper.errors import UserError
from sweeper.exports import verification
from sweeper.exports.verification import Verification, VerifiedChange
from sweeper.interventions import takes_long
from sweeper.interventions.change import EXACT
from sweeper.interventions.kept import FOLDER as KEPT_FOLDER
from sweeper.interventions.loader import COLLATED, Loader
from sweeper.results.decision_lines import decision_lines
from sweeper.scaffold.command_space import help_of, propose
from sweeper.script.watch import watch as watch_script
from sweeper.spec import SweepSpec, load
from sweeper.sweep.bootstrap import shared_cache
from sweeper.sweep.commands import place_lines, unsent_lines
from sweeper.sweep.observer import Observer as SweepObserver
from sweeper.sweep.run import run_sweep
from sweeper.sweep.store.catalog import cannot_write, latest_of_name, require_schema
from sweeper.sweep.store.fingerprint import digest_of_scripts
from sweeper.sweep.store.load import LoadedSweep
from sweeper.system.environment import named, script_held_back_line
from sweeper.telemetry.gpu_lines import gpus_for
from sweeper.tracking.mlflow import MlflowTracker, start_preload
from sweeper.tuning import state, words
from sweeper.tuning.changes import TOO_LITTLE_TIME, ChangeValue, possible
from sweeper.tuning.handover import Observer, hand_over_winner, report_files
from sweeper.tuning.options import TuneOptions
from sweeper.tuning.proofs import Proofs
from sweeper.tuning.result import TuneResult
from sweeper.tuning.space import space, worth_their_time
from sweeper.tuning.state import TuneState
from sweeper.tuning.steps import gains_of

LONG_MINUTES = 10.0
"""Minutes from which what takes long to make, such as compiling, is tried even if launching costs little."""
MIN_MINUTES = 1.0
"""Minimum minutes for the search and the confirmation, however long the earlier steps took."""


class SearchTune:
    """Makes a script faster without editing it, and proves that it trains the same.

    The same options continue a tune that was interrupted.
    """

    def __init__(self, options: TuneOptions, observer: Observer) -> None:
        self._options, self._observer = options, observer
        self._say = observer.line
        self._began_s = time.monotonic()
        self._proofs: Proofs | None = None

    def run(self, *, dry: bool = False) -> TuneResult:
        """Watches, proves, searches, confirms and hands over.

        Args:
            dry: Whether to end before the search.

        Raises:
            TrialFailedError: The script cannot be watched.
            SweeperError: The sweep cannot go on; what was measured is kept.
        """
        options = self._options
        if line := script_held_back_line(os.environ):
            self._say(line)
        with gpus_for(options.command, self._say) as said:
            known = self._watched()
            try:
                known = self._compared(known)
                result = TuneResult(name=options.name, watched=known.watched, changes=tuple(known.changes))
                tried = [change for change in known.changes if not change.refused]
                if not tried and not options.with_flags:
                    self._say("Nothing is left to try.")
                elif dry:
                    self._say(f"A race would try {words.names(tried)}, alone and together.")
                else:
                    result = self._searched(result, tried, said)
                return result
            finally:
                shutil.rmtree(shared_cache(options.home) / KEPT_FOLDER, ignore_errors=True)

    # -- watch ------------------------------------------------------------------------------------

    def _watched(self) -> TuneState:
        """Returns what is known about the script: from an interrupted tune, or by watching it."""
        options = self._options
        known = None if options.new else state.read(options.home, options.name, options.key())
        latest = None if options.new else latest_of_name(options.home, options.name)
        if latest is not None:
            # Before the script is watched for a minute.
            require_schema(latest, "continue")
        if known is None:
            self._say(words.duration_line(options.minutes, MIN_MINUTES))
            self._say("Watching the script as it is, then taking its steps apart.")
            # The script's output is not the tune's.
            with tempfile.TemporaryFile("w", encoding="utf-8") as log, contextlib.redirect_stdout(log):
                cache = shared_cache(options.home)
                watched = watch_script(options.command, Path.cwd(), Silent(), cache=cache)
            known = TuneState(key=options.key(), watched=watched)
            self._keep(known)
        for line in words.watched_lines(known.watched):
            self._say(line)
        return known

    def _keep(self, known: TuneState) -> None:
        try:
            state.write(self._options.home, self._options.name, known)
        except OSError as error:
            raise cannot_write(error, self._options.home) from error

    # -- prove ------------------------------------------------------------------------------------

    def _compared(self, known: TuneState) -> TuneState:
        """Returns the state with all changes: each with its proof, or with the reason why it is not tried."""
        if known.changes:
            for line in words.change_lines(known.changes):
                self._say(line)
            return known
        changes = self._worth_their_time(known.watched, self._proved(known.watched))
        known = dataclasses.replace(known, changes=changes)
        self._keep(known)
        return known

    def _proved(self, watched: Measurement) -> tuple[ChangeValue, ...]:
        self._say("Proving the possible changes: comparing seeded runs with the script's own.")
        offered = self._offered(watched)
        for change in offered:
            if change.refused:
                self._say(f"  {change}: not tried, {change.refused}")
        proofs = self._recorded(watched)
        if proofs.unproved:
            self._say(f"  Nothing can be proved: {proofs.unproved}.")
        return tuple(proofs.prove(offered, self._say))

    def _offered(self, watched: Measurement) -> list[ChangeValue]:
        options = self._options
        try:
            offered = possible(
                watched,
                options.changes,
                allow_batch_size=options.allow_batch_size,
                allow_other_draws=options.allow_other_draws,
            )
        except (ValueError, OSError, SyntaxError, ImportError) as error:
            raise UserError(f"`--changes` must be a file of changes: {error}.") from error
        if options.minutes >= LONG_MINUTES or (launch_share(watched) or 0.0) >= MIN_COST:
            return offered
        why = f"{TOO_LITTLE_TIME} to make it; --minutes {LONG_MINUTES:g} would do"
        return [
            dataclasses.replace(change, refused=change.refused or why) if takes_long(change.name) else change
            for change in offered
        ]

    def _recorded(self, watched: Measurement) -> Proofs:
        """Returns the runs of the unchanged script that changes are compared with."""
        if self._proofs is None:
            self._proofs = Proofs(
                self._options.command,
                Path.cwd(),
                {},
                1000 / watched.step_ms if watched.step_ms else 1.0,
                on_gpu=watched.trains_on_gpu,
                start_seconds=watched.startup_seconds + watched.first_step_seconds,
                file=self._options.changes,
                cache=shared_cache(self._options.home),
            )
        return self._proofs

    def _worth_their_time(
        self, watched: Measurement, changes: tuple[ChangeValue, ...]
    ) -> tuple[ChangeValue, ...]:
        if self._options.allow_batch_size or self._options.with_flags:
            return changes
        spent = (time.monotonic() - self._began_s) / 60
        kept = worth_their_time(changes, watched, self._minutes_left(), spent)
        for before, after in zip(changes, kept, strict=True):
            if after.refused and not before.refused:
                self._say(f"  {after}: left out, {after.refused}")
        return kept

    def _minutes_left(self) -> float:
        return max(MIN_MINUTES, self._options.minutes - (time.monotonic() - self._began_s) / 60)

    # -- search -----------------------------------------------------------------------------------

    def _searched(self, result: TuneResult, tried: Sequence[ChangeValue], said: Sequence[str]) -> TuneResult:
        """Searches and confirms; returns the result with the sweep.

        Args:
            said: Lines that were said before, and are not said again.
        """
        options, minutes = self._options, self._minutes_left()
        self._say(f"Searching {words.names(tried)}: {minutes:.1f} minutes at most.")
        spec = self._spec(result.watched, tried, minutes)
        tracker = MlflowTracker(options.home, options.uri)
        start_preload()
        ran = run_sweep(
            options.home,
            spec,
            tracker,
            _WithoutRepeats(self._observer, said),
            new=options.new,
            finish=lambda sweep: report_files(sweep, self._observer),
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
        result = dataclasses.replace(result, name=sweep.journal.name, lines=tuple(decision), ran=ran)
        if ran.stopped:
            return result
        unsent = unsent_lines(ran, tracker, options.uri, options.home)
        for line in unsent:
            self._observer.command(line)
        return self._concluded(dataclasses.replace(result, unsent=tuple(unsent)), sweep)

    def _spec(self, watched: Measurement, tried: Sequence[ChangeValue], minutes: float) -> SweepSpec:
        options = self._options
        plan = space(
            options.command,
            tried,
            options.name,
            minutes,
            env={},
            samples_per_s=_fastest(watched, tried),
            proposal=propose(options.line, help_of(options.line)) if options.with_flags else None,
            file=str(options.changes.resolve()) if options.changes else "",
            num_gpus=int(watched.observed.get("ranks", 1)) if watched.trains_on_gpu else 1,
        )
        if names_passed := named(os.environ):
            plan["execution"] = {"pass_env": list(names_passed)}
        return load(plan)

    # -- hand over --------------------------------------------------------------------------------

    def _concluded(self, result: TuneResult, sweep: LoadedSweep) -> TuneResult:
        """Says what each change brings, and hands a winner over."""
        gains = gains_of(sweep)
        result = dataclasses.replace(result, gains=tuple(gains))
        self._say("")
        for line in words.ladder_lines(gains, result.changes):
            self._say(line)
        winner = sweep.confirmation.winner
        if winner is None:
            nothing = tuple(words.nothing_lines(sweep, result.changes, self._options.minutes))
            for line in nothing:
                self._say(line)
            return dataclasses.replace(result, lines=(*result.lines, *nothing))
        if sweep.state != "finished":
            return result
        verified = self._verified(sweep, result)
        stack = words.stack_lines(verified, result.changes)
        for line in stack:
            self._say(line)
        result = dataclasses.replace(result, lines=(*result.lines, *stack), fault=verified.difference)
        if result.fault:
            return result
        export = hand_over_winner(sweep, winner, self._options.home, self._observer)
        return dataclasses.replace(result, export=export)

    def _verified(self, sweep: LoadedSweep, result: TuneResult) -> Verification:
        """Returns the verification of the winner's changes together, which is kept in the winner's folder."""
        winner = sweep.summary.winner
        assert winner is not None
        known = verification.read(winner)
        if known is None:
            known = self._verify(winner, result)
            verification.write(winner, known)
        return known

    def _verify(self, winner: TrialRecord, result: TuneResult) -> Verification:
        values = winner.config.flatten()
        made = [change for change in result.changes if str(values.get(change.name)) == change.value]
        provable = [change for change in made if not change.changes_training]
        proofs = self._recorded(result.watched)
        kind, fault = proofs.stack(provable) if provable else (EXACT, "")
        return Verification(
            kind=kind,
            changes=tuple(
                VerifiedChange(name=change.name, value=change.value, original=change.original, why=change.why)
                for change in made
            ),
            is_nondeterministic=bool(proofs.races),
            difference=fault,
            extent=proofs.covers,
            code=digest_of_scripts(self._options.command),
        )


class _WithoutRepeats:
    """Passes on what a sweep says, but for the lines that were said before it."""

    def __init__(self, observer: SweepObserver, said: Sequence[str]) -> None:
        self._observer, self._said = observer, said
        self.trial, self.status = observer.trial, observer.status

    def line(self, text: str) -> None:
        if text not in self._said:
            self._observer.line(text)


def _fastest(watched: Measurement, tried: Sequence[ChangeValue]) -> float:
    """Returns the samples per second at which a loss can be measured, with a gathered loader if tried."""
    is_gathered = any(change.name == Loader.name and change.value in COLLATED for change in tried)
    on_one_batch = watched.diagnosis.device_samples_s if watched.diagnosis else None
    return max(watched.throughput, on_one_batch or 0.0) if is_gathered else watched.throughput
