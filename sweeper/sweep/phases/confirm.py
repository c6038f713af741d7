"""Confirms the best few trials against the baseline, in rounds of fresh processes in random order."""

from __future__ import annotations

import dataclasses
import shutil
import statistics
from collections.abc import Sequence

from sweeper.analysis.confirmation import MIN_ROUNDS
from sweeper.analysis.finalists import finalists
from sweeper.core.measurement import FailureKind
from sweeper.core.record import BASELINE, TrialRecord
from sweeper.sweep.context import SweepContext
from sweeper.sweep.phases.early_rounds import early_rounds
from sweeper.sweep.phases.idle_values import without_idle
from sweeper.sweep.phases.ladder import ladder
from sweeper.sweep.phases.losses import losses_over_seeds
from sweeper.sweep.phases.reserve import confirm_seconds, loss_seconds, round_seconds
from sweeper.sweep.phases.rounds import AMONG, Rounds
from sweeper.sweep.phases.to_loss import to_loss
from sweeper.sweep.stopping import StopAskedError
from sweeper.sweep.store.journal import CONFIRM
from sweeper.sweep.store.result import ConfirmationResult
from sweeper.sweep.trial_runner import TrialRunner
from sweeper.system.files import make_folder

HURRY_SECONDS = 18.0
HURRY_WINDOW_SECONDS = 0.5


def confirm(context: SweepContext, trials: TrialRunner) -> ConfirmationResult:
    """Runs the rounds that are needed and for which there is time.

    A round is one fresh process per candidate and one for the baseline. Rounds already in the folder
    count; an incomplete round is completed.
    """
    spec = context.spec
    chosen: Sequence[TrialRecord] = _finalists(context, trials)
    if not chosen or not spec.confirm.rounds:
        return ConfirmationResult(winner=None)
    # From now on, the search has ended.
    make_folder(context.journal.rounds_folder(CONFIRM))
    begun = _begun(context, trials, chosen)
    if spec.traits.is_of_changes and not begun:
        chosen = ladder(context, trials, chosen[0], lambda among: _fits(context, trials, among))
        left = trials.budget.seconds_left
        # A tune ends in time, even without a confirmation.
        if not chosen or (left is not None and left < round_seconds(context, trials, chosen[:1])):
            return ConfirmationResult(winner=None)
    whole = len(chosen)
    chosen = begun or chosen[: _num_candidates(context, trials, chosen)]
    is_fixed = bool(begun) or spec.traits.is_of_changes or len(chosen) < whole
    among = [each.number for each in chosen] if is_fixed else ()
    window, wanted = spec.measure.window_seconds, spec.confirm.rounds
    rounds = Rounds(context, trials, CONFIRM, window, wanted, among, early_rounds(context.journal))
    rounds.run([record.number for record in chosen], loss_seconds(trials, spec, chosen[0]))
    rounds.record()
    if context.stopping.asked:
        # The sweep must end within seconds.
        return rounds.result(())
    found = rounds.result(_unfit(context, trials, rounds))
    speed = next((each for each in found.ratios if each.number == found.winner), None)
    if speed is None:
        return found
    try:
        winner = trials.table.records[speed.number]
        sooner, missed = to_loss(context, trials, winner, speed, rounds.throughputs())
    except StopAskedError:
        trials.jobs.cancel()
        return found
    return dataclasses.replace(found, to_loss=sooner, missed_loss=missed)


def _num_candidates(context: SweepContext, trials: TrialRunner, chosen: Sequence[TrialRecord]) -> int:
    """Returns how many candidates there is time for with the fewest rounds: candidates give way to rounds."""
    number = len(chosen)
    while number > 1 and not _fits(context, trials, chosen[:number]):
        number -= 1
    return number


def _fits(context: SweepContext, trials: TrialRunner, chosen: Sequence[TrialRecord]) -> bool:
    """Returns whether there is time for the fewest rounds of the candidates `chosen`."""
    left = trials.budget.seconds_left
    return left is None or confirm_seconds(context, trials, chosen) <= left


def _begun(
    context: SweepContext, trials: TrialRunner, chosen: Sequence[TrialRecord]
) -> Sequence[TrialRecord]:
    """Returns the candidates that an interrupted confirmation began with; none if none has begun."""
    first = next((entry.job.params for entry in context.journal.rounds(CONFIRM)), None)
    if first is None:
        return []
    if isinstance(named := first.get(AMONG), str):
        return [trials.table.judged(int(number)) for number in named.split()]
    # Earlier versions wrote only the number of candidates, and only if not all took part.
    number = first.get("among")
    return chosen[:number] if isinstance(number, int) else chosen


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
    shutil.rmtree(context.journal.rounds_folder("stopped"), ignore_errors=True)
    window = min(HURRY_WINDOW_SECONDS, spec.measure.window_seconds)
    rounds = Rounds(context, trials, "stopped", window, 2 * MIN_ROUNDS)
    try:
        rounds.run([winner])
    except KeyboardInterrupt:
        trials.jobs.cancel()
        return ConfirmationResult(winner=winner)
    found = rounds.result(())
    if len(rounds.speeds) >= MIN_ROUNDS:
        return found
    return dataclasses.replace(found, winner=winner, confirmed=False, ratios=(), rounds=())


def _finalists(context: SweepContext, trials: TrialRunner) -> list[TrialRecord]:
    table, needs_loss = trials.table, bool(trials.table.quality_samples)
    among = table.finished()
    if context.spec.traits.drops == "idle":
        among = without_idle(among, context.spec)
    return finalists(among, table.records[BASELINE], context.spec, needs_loss=needs_loss)


def _unfit(context: SweepContext, trials: TrialRunner, rounds: Rounds) -> set[int]:
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
        winner = rounds.result(unfit).winner
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
                f"The loss of {context.name(record)} is that of fewer seeds than your baseline's"
                f" ({failure.kind}: {failure.message})."
            )
        mean = statistics.fmean(losses) if losses else 0.0
        exceeded = next((each for each in limits if losses and each.violation(mean) > 0), None)
        if exceeded is None:
            return unfit
        context.observer.line(
            f"{context.name(record)} is ruled out: its loss over {len(losses)} seeds is "
            f"{mean:.4g}, beyond the limit of {exceeded.bound:.4g}."
        )
        unfit.add(winner)
