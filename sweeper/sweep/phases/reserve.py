"""Estimates how long the confirmation takes, so that the search leaves time for it."""

from __future__ import annotations

from collections.abc import Sequence

from sweeper.core.record import BASELINE, TrialRecord
from sweeper.race.policy import FIRST_TURNS
from sweeper.results.numbers.trial_table import TrialTable
from sweeper.schema import SweepSpec
from sweeper.sweep.phases.lives import can_rest
from sweeper.sweep.phases.losses import num_seeds
from sweeper.sweep.phases.race import turn_limits, warmup_seconds
from sweeper.sweep.start.context import SweepContext
from sweeper.sweep.trial_runner import TrialRunner

CONFIRM_SHARE, MAX_CONFIRM_SHARE = 0.2, 0.5
"""Shares of the sweep's time that the search leaves at least, and at most."""
STOP_SECONDS = 1.0
"""Seconds that a script takes to stop after its turns."""
MIN_ROUNDS = 3
"""Rounds that the search leaves time for. After the first, those that are clearly slower take no part."""
END_SECONDS = 0.5
"""Seconds from the last window of a process to the start of the next process."""


def seconds_after_search(context: SweepContext, trials: TrialRunner, spec: SweepSpec) -> float:
    """Returns the seconds that a search with a time limit leaves for the confirmation.

    Args:
        spec: The specification with the space that is searched.
    """
    if not spec.confirm.rounds:
        return 0.0
    total = (spec.search.minutes or 0.0) * 60
    best = trials.table.best_trial()
    shortest = confirm_seconds(context, trials, [best]) if best is not None else 0.0
    return max(CONFIRM_SHARE * total, min(MAX_CONFIRM_SHARE * total, shortest))


def confirm_seconds(context: SweepContext, trials: TrialRunner, candidates: Sequence[TrialRecord]) -> float:
    """Returns about how many seconds the fewest rounds of `candidates` and the winner's losses take."""
    return loss_seconds(trials, context.spec, candidates[0]) + MIN_ROUNDS * round_seconds(
        context, trials, candidates
    )


def round_seconds(context: SweepContext, trials: TrialRunner, candidates: Sequence[TrialRecord]) -> float:
    """Returns about how many seconds one round of `candidates` and the baseline takes."""
    spec, table = context.spec, trials.table
    runs = [*candidates, table.records[BASELINE]]
    one_round = sum(run_seconds(table, record, spec) for record in runs)
    window = spec.measure.window_seconds
    if not can_rest(context, table, runs, window):
        return one_round
    shortest, _ = turn_limits(runs, window, rests=True)
    stop = STOP_SECONDS if spec.traits.takes_turns else 0.0
    return one_round + len(runs) * (FIRST_TURNS * shortest - window + stop)


def run_seconds(table: TrialTable, record: TrialRecord, spec: SweepSpec) -> float:
    """Returns about how many seconds one process of a trial takes in a round; 0 if it was not measured."""
    if record.measurement is None:
        return 0.0
    start = table.restart_seconds(record) + warmup_seconds(record.measurement)
    return start + spec.measure.window_seconds + END_SECONDS


def loss_seconds(trials: TrialRunner, spec: SweepSpec, winner: TrialRecord) -> float:
    """Returns about how many seconds the losses of a winner over the baseline's seeds take."""
    table, measured = trials.table, winner.measurement
    has_limit = table.quality_samples and any(limit.metric == "val_loss" for limit in table.limits())
    if measured is None or not has_limit:
        return 0.0
    seconds = winner.quality.seconds if winner.quality is not None else 0.0
    if not spec.traits.counts_samples:
        # A script trains until it has seen the samples.
        seconds = table.quality_samples / measured.throughput
    one = measured.startup_seconds + seconds + END_SECONDS
    return one * (num_seeds(spec, table) - 1)
