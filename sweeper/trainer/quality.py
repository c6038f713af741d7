"""The quality pass: the validation loss after exactly so many samples from the trial's seed."""

from __future__ import annotations

import math
import random
import time

import numpy as np
import torch
from torch import nn

from sweeper.core.codec import encode
from sweeper.core.config import TrialConfig
from sweeper.core.job import Job
from sweeper.core.measurement import FailureKind, Quality, Report
from sweeper.core.progress import Progress, TrialFailedError
from sweeper.trainer.clocks import NoClock
from sweeper.trainer.data.order import Epoch, Order
from sweeper.trainer.data.resident import Reader
from sweeper.trainer.pipeline import Pipeline, Samples
from sweeper.trainer.setup import set_up
from sweeper.trainer.step import Stepper

VALIDATION_BATCH = 4096
CURVE_PARTS = 4
"""The loss is looked at after each of so many parts of the pass."""


def run(job: Job, progress: Progress) -> Report:
    """Runs the quality pass alone, as a job of its own."""
    progress.stage("build")
    pipeline, stepper, _ = set_up(job)
    progress.stage("quality")
    result = measure(pipeline, stepper, job.plan.quality_samples)
    return Report(values=encode(result), finished_at=time.time())


def measure(pipeline: Pipeline, stepper: Stepper, num_samples: int) -> Quality:
    """Trains from the seed on exactly `num_samples` samples in the seed's order, then validates.

    Batches are gathered on the device (or read from the host, where the data does not fit), whatever
    loader the trial has: the loss depends on the numerics alone. The last batch may be smaller; it
    goes through the model as it was built, since another shape would be compiled for a single step.

    Validations on the way change nothing of what follows. They are left out where they are expensive:
    with more validation samples than training samples between them.

    Raises:
        TrialFailedError: A loss is not finite.
    """
    began = time.perf_counter()
    config, samples = stepper.config, pipeline.train
    stepper.reset()
    reader = Reader(samples, stepper.device)
    clock = NoClock()
    total = torch.zeros((), device=stepper.device)
    curve: list[tuple[int, float]] = []
    part = num_samples / CURVE_PARTS
    seen, due = 0, part if pipeline.val.length <= part else math.inf
    for index, length in _order(samples, config).first(num_samples).batches():
        whole = len(index) == config.batch_size
        stepper.train(reader(index, length), clock, stepper.compiled if whole else stepper.model)
        total += stepper.last_loss * len(index)
        seen += len(index)
        # Between optimiser steps only: what has been accumulated is not in the weights yet.
        if due <= seen < num_samples and stepper.micro_steps % config.accumulate_steps == 0:
            curve.append((seen, glance(pipeline, stepper)))
            due = (seen // part + 1) * part
    stepper.finish()
    train_loss = total.item() / num_samples
    val_loss = validate(pipeline, stepper, stepper.model)
    if not (math.isfinite(train_loss) and math.isfinite(val_loss)):
        raise TrialFailedError(
            FailureKind.NON_FINITE,
            f"the loss is not finite after {num_samples} samples (train {train_loss}, validation {val_loss})",
        )
    return Quality(
        key=f"{config.quality_key()}-{num_samples}",
        samples=num_samples,
        seconds=time.perf_counter() - began,
        train_loss=train_loss,
        val_loss=val_loss,
        constant_loss=pipeline.constant_loss,
        best_loss=pipeline.best_loss,
        curve=(*(point for point in curve if math.isfinite(point[1])), (num_samples, val_loss)),
    )


def glance(pipeline: Pipeline, stepper: Stepper) -> float:
    """Returns the validation loss in the midst of training, which goes on as if nothing had been.

    A pipeline's loss or its model may draw random numbers in evaluation, too.
    """
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[stepper.device] if stepper.device.type == "cuda" else []):
        loss = validate(pipeline, stepper, stepper.model)
    random.setstate(states[0])
    np.random.set_state(states[1])
    return loss


def validate(pipeline: Pipeline, stepper: Stepper, model: nn.Module) -> float:
    """Returns the mean loss over the validation samples, in the trial's own precision."""
    samples, device = pipeline.val, stepper.device
    reader = Reader(samples, device)
    total = torch.zeros((), device=device, dtype=torch.float64)
    model.eval()
    with torch.no_grad(), stepper.autocast:
        for index, length in _in_order(samples, stepper.config).batches():
            total += pipeline.loss(model, reader(index, length)).double() * len(index)
    model.train()
    return total.item() / samples.length


def _in_order(samples: Samples, config: TrialConfig) -> Epoch:
    """Returns each sample once: as they come, or bucket by bucket in batches of the training's size."""
    if samples.lengths is None:
        index = torch.arange(samples.length)
        sizes = [len(part) for part in index.split(VALIDATION_BATCH)]
        return Epoch(index, sizes, [0] * len(sizes))
    return _order(samples, config).epoch(0)


def _order(samples: Samples, config: TrialConfig) -> Order:
    return Order(
        samples.length,
        config.batch_size,
        config.seed,
        drop_last=False,
        lengths=samples.lengths,
        buckets=config.loader.buckets,
    )
