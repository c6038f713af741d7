"""Trains the baseline and the winner to the baseline's loss with several seeds, if there is time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sweeper.core.config import TrialConfig
from sweeper.core.job import QUALITY_RUNNER, MeasurePlan
from sweeper.core.measurement import Failure
from sweeper.core.record import BASELINE, TrialRecord
from sweeper.race.log import Round
from sweeper.race.tally import Tally
from sweeper.results.numbers.confirmation import Ratio
from sweeper.results.numbers.projection import Curve
from sweeper.results.numbers.time_to_loss import MAX_SAMPLES, MIN_POINTS, TimeToLoss, target, time_to_loss
from sweeper.results.numbers.trial_table import NUM_SEEDS
from sweeper.sweep.folder.load import quality_of
from sweeper.sweep.phases.losses import PARTS
from sweeper.sweep.start.context import SweepContext
from sweeper.sweep.trial_runner import TrialRunner

SEEDS = 5

USUAL_SHARE = 1.5
"""Multiple of the baseline's samples that the winner is expected to need at most."""

MAX_SECONDS = 300.0
"""Longest time in seconds if the sweep has no time limit and the user has not asked for this phase."""


def to_loss(
    context: SweepContext, trials: TrialRunner, winner: TrialRecord, speed: Ratio, rounds: Sequence[Round]
) -> tuple[TimeToLoss | None, float | None]:
    """Returns how much sooner the winner reaches the baseline's loss, or that loss if it does not reach it.

    Both are None if that is not measured; otherwise exactly one of them is.

    A winner with the baseline's numerics learns the same from the same samples, so there is nothing to
    measure. A script is left out, since it decides for itself when to stop.
    """
    spec, table = context.spec, trials.table
    baseline = table.records[BASELINE]
    wanted, samples = spec.confirm.to_loss, table.quality_samples
    if wanted is False or not spec.traits.counts_samples or not samples:
        return None, None
    if winner.config.quality_key() == baseline.config.quality_key():
        return None, None
    seconds, left = _seconds(trials, winner), trials.budget.seconds_left
    if wanted is None and seconds > (MAX_SECONDS if left is None else left):
        return None, None
    trials.progress.begin("training to the loss", 2 * SEEDS)
    curves: list[Curve] = []
    for number in range(SEEDS):
        curve = _curve(context, trials, baseline.config, f"to-loss-baseline-{number}", number, samples)
        if curve is None:
            return None, None
        if len(curve) < MIN_POINTS:
            context.observer.line(
                "The time to the baseline's loss is not measured: validation takes too long compared with"
                f" training on {samples:,} samples. Raise `measure.quality_samples`, or validate on fewer"
                " samples."
            )
            return None, None
        curves.append(curve)
        trials.progress.advance_to(len(curves))
    loss, winner_curves = target(curves), []
    for number in range(SEEDS):
        name = f"to-loss-{winner.number}-{number}"
        curve = _curve(context, trials, winner.config, name, number, MAX_SAMPLES * samples, loss)
        if curve is None:
            return None, None
        winner_curves.append(curve)
        trials.progress.advance_to(SEEDS + len(winner_curves))
    result = time_to_loss(
        loss, curves, winner_curves, speed, Tally.of(rounds, winner.number).single_half_width()
    )
    if result is None:
        context.observer.line(
            f"With at least one seed, {context.name(winner)} does not reach the baseline's loss of"
            f" {loss:.4g} within {MAX_SAMPLES} times its {samples:,} samples."
        )
    return result, None if result else loss


def _seconds(trials: TrialRunner, winner: TrialRecord) -> float:
    """Returns about how many seconds all trainings take; some of the baseline's have run already."""
    baseline, total = trials.table.records[BASELINE], 0.0
    for record, seeds in ((baseline, SEEDS - NUM_SEEDS), (winner, USUAL_SHARE * SEEDS)):
        quality = record.quality or baseline.quality
        measurement = record.measurement
        start = measurement.startup_seconds + measurement.first_step_seconds if measurement else 0.0
        total += seeds * (start + (quality.seconds if quality else 0.0))
    return total


def _curve(
    context: SweepContext,
    trials: TrialRunner,
    config: TrialConfig,
    name: str,
    number: int,
    samples: int,
    until: float | None = None,
) -> Curve | None:
    """Returns the loss curve of a training with another seed; None if it failed.

    Args:
        number: Added to the configuration's seed.
        samples: Most training samples.
        until: Loss at which the training ends; None to train on all samples.
    """
    seeded = config.replace({"seed": config.seed + number})
    if until is None and (quality := trials.table.quality_of(seeded)) is not None:
        return quality.curve
    parts = PARTS * (MAX_SAMPLES if until is not None else 1)
    plan = MeasurePlan(
        repeats=0, quality_samples=samples, quality_parts=parts, until_loss=until, evaluate=False
    )
    job = dataclasses.replace(trials.job("loss", seeded), runner=QUALITY_RUNNER, plan=plan)
    if context.spec.confirm.to_loss:
        # The user asked for it, even beyond the sweep's time.
        job = dataclasses.replace(job, timeout_seconds=60 * context.spec.execution.trial_timeout_minutes)
    folder = context.journal.setup_folder(name)
    outcome = trials.run(folder, job)
    if isinstance(outcome, Failure):
        context.observer.line(
            f"The time to the baseline's loss was not measured: a training failed ({outcome.kind}: "
            f"{outcome.message})."
        )
    quality = quality_of(outcome, folder)
    return quality.curve if quality is not None else None
