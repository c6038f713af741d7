"""Runs a sweep from its first trial to its result.

baseline ─► interference ─► baseline's loss over seeds ─► references ─► preflight
         ─► search ─► confirm ─► traces ─► result.json

Trials that are already in the folder are skipped; trials that were cut off run again.
"""

from __future__ import annotations

from collections.abc import Mapping

from sweeper.core.config import TrialConfig
from sweeper.core.job import PREPARE_RUNNER, PROBE_RUNNER, seconds_of
from sweeper.core.record import BASELINE, TrialRecord
from sweeper.errors import NothingFeasibleError
from sweeper.sweep.budget import union_seconds
from sweeper.sweep.folder.journal import FINAL_RACE, NumberedJob
from sweeper.sweep.folder.load import enter_trials
from sweeper.sweep.folder.result import SweepResult
from sweeper.sweep.phases.confirm import confirm, confirm_in_a_hurry
from sweeper.sweep.phases.interference import check_interference
from sweeper.sweep.phases.losses import measure_losses
from sweeper.sweep.phases.preflight import preflight
from sweeper.sweep.phases.traces import is_traced, trace_seconds, write_traces
from sweeper.sweep.start.context import SweepContext
from sweeper.sweep.stopping import StopAskedError
from sweeper.sweep.trial_runner import TrialRunner
from sweeper.system.failpoints import failpoint

REPORT_SECONDS = 2.0
"""Seconds from the last trace to the end of `sweeper run`, in which the report is drawn."""

Unfinished = Mapping[int, NumberedJob]
"""Trials that were begun and have no final outcome, by number."""


def run_phases(context: SweepContext) -> None:
    """Runs every phase and writes the result to the folder.

    If the user asks it to stop, it quickly confirms the best trial so far; the sweep can be continued.
    """
    journal = context.journal
    with TrialRunner.of(context) as trials:
        unfinished = load_trials(context, trials)
        try:
            search_end = _run_until_confirmation(context, trials, unfinished)
            result = SweepResult(search_end=search_end, confirmation=confirm(context, trials))
        except StopAskedError:
            trials.jobs.cancel()
            if trials.table.yardstick is None:
                # There is nothing to confirm: callers handle it like any other Ctrl-C (exit code 130).
                raise KeyboardInterrupt from None
            result = SweepResult(
                search_end="it was stopped", confirmation=confirm_in_a_hurry(context, trials)
            )
        if context.stopping.is_requested:
            journal.write_interim_result(result)
            return
        if is_traced(context.spec):
            try:
                write_traces(context, trials, [BASELINE, result.confirmation.winner])
            except StopAskedError:
                # The result is complete without traces.
                trials.jobs.cancel()
        journal.write_result(result)
        failpoint("finished")


def load_trials(context: SweepContext, trials: TrialRunner) -> Unfinished:
    """Enters the folder's trials and charges their time; returns the trials that have no final outcome."""
    journal = context.journal
    journal.discard_interim_result()
    entries = list(journal.trials())
    unfinished = enter_trials(trials.table, journal, entries)
    rounds = [entry for race in (*journal.early_races(), FINAL_RACE) for entry in journal.race_jobs(race)]
    # Every supervisor probes the machine and looks up the data anew, within its own time.
    setup = [entry for entry in journal.setup() if entry.job.runner not in (PROBE_RUNNER, PREPARE_RUNNER)]
    jobs = [(entry.job, entry.outcome) for entry in (*entries, *rounds, *setup)]
    spans = ((job.created_at, seconds_of(job, outcome)) for job, outcome in jobs if outcome)
    trials.budget.charge(union_seconds(spans))
    return {entry.number: entry for entry in unfinished}


def _run_until_confirmation(context: SweepContext, trials: TrialRunner, unfinished: Unfinished) -> str:
    """Runs all phases before the confirmation; returns why the search, the last of them, ended."""
    references = context.spec.references()
    _run_baseline(context, trials, unfinished)
    check_interference(context, trials)
    spec = measure_losses(context, trials)
    trials.table.update_all()
    for number, config in enumerate(references[1:], start=1):
        origin = f"entry {number} of the space's `also_try`"
        _run_reference(trials, number, "reference", config, origin, unfinished)
    spec, passed = preflight(context, trials, spec)
    # These come last, and neither the search nor the confirmation may take their time.
    trials.budget.charge(trace_seconds(context.spec, trials.table) + REPORT_SECONDS)
    searched = [entry for number, entry in unfinished.items() if number >= len(references)]
    # A tune searches nothing, and Optuna is slow to import.
    from sweeper.sweep.phases.search import Search

    return Search(context, trials, spec, passed, searched).run()


def _run_reference(
    trials: TrialRunner, number: int, stage: str, config: TrialConfig, origin: str, unfinished: Unfinished
) -> TrialRecord:
    if number not in trials.table.records:
        trials.start(number, stage, config, {}, origin)
    elif number in unfinished:
        trials.resume(unfinished[number])
    for key, job, outcome in trials.jobs.wait():
        trials.finish(key, job, outcome)
    record = trials.table.refresh(number)
    trials.publish(record)
    return record


def _run_baseline(context: SweepContext, trials: TrialRunner, unfinished: Unfinished) -> None:
    config = context.spec.baseline_config()
    record = _run_reference(trials, BASELINE, "baseline", config, "the space's `baseline`", unfinished)
    if record.failure is not None:
        raise NothingFeasibleError(
            f"the baseline did not run ({record.failure.kind}): {record.failure.message}. "
            f"Its output is in {record.folder}/worker.log. Fix it and run the same command again."
        )
    diagnosis = record.measurement.diagnosis if record.measurement else None
    if diagnosis is not None and diagnosis.outside:
        context.observer.line(f"The script {', '.join(diagnosis.outside)}, and so does every trial.")
