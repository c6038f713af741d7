"""Measures the baseline's loss over its seeds and derives the loss limits."""

from __future__ import annotations

import dataclasses

from sweeper.core.config import TrialConfig
from sweeper.core.job import CONFIG, MeasurePlan, read_job
from sweeper.core.measurement import Failure, FailureKind
from sweeper.core.metrics import metric_row
from sweeper.core.record import BASELINE
from sweeper.results import words
from sweeper.results.numbers.trial_table import NUM_SEEDS, TrialTable
from sweeper.schema import SweepSpec
from sweeper.schema.enough_steps import with_enough_steps
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.folder.load import quality_of
from sweeper.sweep.start.context import SweepContext
from sweeper.sweep.trial_runner import TrialRunner
from sweeper.sweep.workloads import workload_of

QUALITY_SECONDS, QUALITY_SHARE = 20.0, 1 / 60
"""Seconds that the baseline's pass may take, or share of the sweep's time if that is less; this decides its
samples (`measure.quality_samples: auto`)."""
PARTS = 16
"""Number of parts of a training; the loss is measured after each."""
SEEDS_SHARE = 1 / 6
"""Share of the sweep's time that a script's losses over several seeds may take; one seed always runs."""


def measure_losses(context: SweepContext, trials: TrialRunner) -> SweepSpec:
    """Runs the baseline's quality pass over several seeds; returns the specification with limited batches."""
    spec, table = context.spec, trials.table
    baseline = table.records[BASELINE]
    assert baseline.measurement is not None
    setting = spec.measure.quality_samples
    if setting == 0 or not looks_at_loss(spec):
        return spec
    if setting == "auto":
        seconds = QUALITY_SECONDS
        if spec.search.minutes:
            seconds = min(seconds, QUALITY_SHARE * spec.search.minutes * 60)
        size = baseline.config.batch_size
        samples = workload_of(spec).quality_samples(spec, baseline.measurement, size, seconds)
    else:
        samples = int(setting)
    samples = _samples_before(context.journal) or samples
    spec, lines = with_enough_steps(spec, samples)
    for line in lines:
        context.observer.line(line)
    table.measure_loss_after(samples)
    losses, failure = losses_over_seeds(context, trials, baseline.config, "loss")
    table.enter_losses(tuple(losses))
    trials.publish(table.refresh(BASELINE))
    yardstick = table.yardstick
    if failure and not losses:
        context.observer.line(
            f"The baseline's loss could not be measured ({failure.kind}: {failure.message}), "
            "so limits relative to it are not applied."
        )
    if yardstick and not yardstick.loss_is_informative:
        context.observer.line(words.CANNOT_TELL)
    return spec


def _samples_before(journal: Journal) -> int:
    """Returns the samples after which this sweep has measured its losses so far; 0 if it has not.

    What follows from the settings may be another number now: an extended sweep has no time limit.
    """
    folder = journal.setup_folder("loss-0")
    return read_job(folder).plan.quality_samples if (folder / CONFIG).exists() else 0


def losses_over_seeds(
    context: SweepContext, trials: TrialRunner, config: TrialConfig, name: str
) -> tuple[list[float], Failure | None]:
    """Returns the losses of `config` over several seeds, its own seed first, and the failure if one failed.

    Each runs as a separate job in the folder `setup/<name>-<i>`, unless its loss is known.
    """
    losses, failure, work = [], None, workload_of(context.spec)
    for i in range(num_seeds(context.spec, trials.table)):
        # The first run keeps the configuration's seed: a script may have no such parameter.
        seeded = config.replace({"seed": config.seed + i}) if i else config
        quality = trials.table.quality_of(seeded)
        if quality is None:
            plan = MeasurePlan(
                repeats=0,
                quality_samples=trials.table.quality_samples,
                quality_parts=PARTS,
                evaluate=i == 0 or "seed" in context.spec.space,
            )
            job = trials.job("loss", seeded)
            job = dataclasses.replace(job, runner=work.loss_runner, plan=plan)
            folder = context.journal.setup_folder(f"{name}-{i}")
            outcome = trials.run(folder, job)
            quality = quality_of(outcome, folder)
            if isinstance(outcome, Failure) and (failure is None or failure.kind != FailureKind.NON_FINITE):
                failure = outcome
        if quality is not None:
            trials.table.enter_quality(quality, seeded)
            losses.append(quality.val_loss)
    return losses, failure


def num_seeds(spec: SweepSpec, table: TrialTable) -> int:
    """Returns the number of seeds over which losses are measured: fewer for a slow script."""
    baseline = table.records[BASELINE].measurement
    if spec.traits.counts_samples or not spec.search.minutes or baseline is None:
        return NUM_SEEDS
    one = baseline.startup_seconds + table.quality_samples / baseline.throughput
    return max(1, min(NUM_SEEDS, int(SEEDS_SHARE * 60 * spec.search.minutes / one)))


def looks_at_loss(spec: SweepSpec) -> bool:
    """Returns whether an objective, a constraint or the confirmation needs the loss of a quality pass."""
    return spec.confirm.to_loss is True or any(metric_row(name).rests_on_loss for name in spec.metrics())
