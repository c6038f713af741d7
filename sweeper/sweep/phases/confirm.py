"""Confirms the best few trials: races them against the baseline."""

from __future__ import annotations

import dataclasses
import shutil
import statistics
from collections.abc import Sequence

from sweeper.core.measurement import FailureKind
from sweeper.core.record import BASELINE, TrialRecord
from sweeper.results.numbers.confirmation_result import ConfirmationResult
from sweeper.results.numbers.finalists import finalists
from sweeper.sweep.folder.journal import FINAL_RACE, INTERIM_RACE
from sweeper.sweep.phases.dropped_values import without_idle
from sweeper.sweep.phases.early_rounds import early_rounds
from sweeper.sweep.phases.losses import losses_over_seeds
from sweeper.sweep.phases.race import ARMS, MAX_ROUNDS, SweepRace
from sweeper.sweep.phases.reserve import confirm_seconds, loss_seconds
from sweeper.sweep.phases.to_loss import to_loss
from sweeper.sweep.start.context import SweepContext
from sweeper.sweep.stopping import StopAskedError
from sweeper.sweep.trial_runner import TrialRunner
from sweeper.system.files import make_folder

HURRY_SECONDS = 18.0
HURRY_WINDOW_SECONDS = 0.5
HURRY_ROUNDS = 6


def confirm(context: SweepContext, trials: TrialRunner) -> ConfirmationResult:
    """Runs the rounds that are needed and for which there is time.

    A round has a new process of each candidate and of the baseline. A race that was cut off goes on.
    """
    spec = context.spec
    chosen: Sequence[TrialRecord] = _finalists(context, trials)
    if not chosen or not spec.confirm.rounds:
        return ConfirmationResult(winner=None)
    # From now on, the search has ended.
    make_folder(context.journal.race_folder(FINAL_RACE))
    begun = _earlier_candidates(context, trials)
    chosen = begun or chosen[: _num_candidates(context, trials, chosen)]
    window, early = spec.measure.window_seconds, early_rounds(context.journal)
    race = SweepRace(context, trials, FINAL_RACE, window, early)
    num_rounds, reserve = spec.confirm.rounds, loss_seconds(trials, spec, chosen[0])
    race.run([record.number for record in chosen], num_rounds, MAX_ROUNDS * num_rounds, reserve)
    race.record()
    if context.stopping.is_requested:
        # The sweep must end within seconds.
        return race.result(())
    result = race.result(_find_unfit(context, trials, race))
    speed = next((ratio for ratio in result.ratios if ratio.trial == result.winner), None)
    if speed is None:
        return result
    try:
        winner = trials.table.records[speed.trial]
        sooner, missed = to_loss(context, trials, winner, speed, race.rounds)
    except StopAskedError:
        trials.jobs.cancel()
        return result
    return dataclasses.replace(result, time_to_loss=sooner, unreached_loss=missed)


def _num_candidates(context: SweepContext, trials: TrialRunner, chosen: Sequence[TrialRecord]) -> int:
    """Returns how many candidates there is time for with the fewest rounds: candidates give way to rounds."""
    number, left = len(chosen), trials.budget.seconds_left
    while number > 1 and left is not None and confirm_seconds(context, trials, chosen[:number]) > left:
        number -= 1
    return number


def _earlier_candidates(context: SweepContext, trials: TrialRunner) -> Sequence[TrialRecord]:
    """Returns the candidates that an interrupted race began with; none if none has begun."""
    first = next((entry.job.params for entry in context.journal.race_jobs(FINAL_RACE)), {})
    return [trials.table.refresh(int(number)) for number in first.get(ARMS, ())]


def confirm_in_a_hurry(context: SweepContext, trials: TrialRunner) -> ConfirmationResult:
    """Confirms the best trial so far within 20 s; a second Ctrl-C leaves it unconfirmed."""
    spec, best = context.spec, _finalists(context, trials)[:1]
    if not best:
        return ConfirmationResult(winner=None)
    winner = best[0].number
    context.observer.line(
        f"Stopping: confirming {context.name(best[0])}, {HURRY_SECONDS + 2:.0f} s at most. "
        "Press Ctrl-C again to stop immediately."
    )
    trials.budget.hurry(HURRY_SECONDS)
    shutil.rmtree(context.journal.race_folder(INTERIM_RACE), ignore_errors=True)
    window = min(HURRY_WINDOW_SECONDS, spec.measure.window_seconds)
    race = SweepRace(context, trials, INTERIM_RACE, window)
    try:
        race.run([winner], HURRY_ROUNDS, HURRY_ROUNDS)
    except KeyboardInterrupt:
        trials.jobs.cancel()
        if not trials.budget.is_over:
            return ConfirmationResult(winner=winner)
    return race.result(()) if race.rounds else ConfirmationResult(winner=winner)


def _finalists(context: SweepContext, trials: TrialRunner) -> list[TrialRecord]:
    table, needs_loss = trials.table, bool(trials.table.quality_samples)
    records = table.finished_trials()
    if not context.spec.traits.names_are_fields:
        records = without_idle(records, context.spec)
    return finalists(records, table.records[BASELINE], context.spec, needs_loss=needs_loss)


def _find_unfit(context: SweepContext, trials: TrialRunner, race: SweepRace) -> set[int]:
    """Returns the candidates whose loss over the baseline's seeds is beyond its limit.

    The search had the loss of a single seed. Candidates are checked from the winner down until one is within
    its limits.
    """
    table = trials.table
    limits = [limit for limit in table.limits() if limit.metric == "val_loss"]
    unfit: set[int] = set()
    if not limits or not table.quality_samples:
        return unfit
    while True:
        winner = race.result(unfit).winner
        if winner is None:
            return unfit
        record = table.records[winner]
        losses, failure = losses_over_seeds(context, trials, record.config, f"loss-{winner}")
        if failure is not None and failure.kind is FailureKind.NON_FINITE:
            context.observer.line(
                f"{context.name(record)} is ruled out: with another seed, {failure.message}."
            )
            unfit.add(winner)
            continue
        if failure is not None:
            context.observer.line(
                f"The loss of {context.name(record)} is a mean over fewer seeds than your baseline's"
                f" ({failure.kind}: {failure.message})."
            )
        mean = statistics.fmean(losses) if losses else 0.0
        exceeded = next((limit for limit in limits if losses and limit.violation(mean) > 0), None)
        if exceeded is None:
            return unfit
        context.observer.line(
            f"{context.name(record)} is ruled out: its loss over {len(losses)} seeds is "
            f"{mean:.4g}, beyond the limit of {exceeded.bound:.4g}."
        )
        unfit.add(winner)
