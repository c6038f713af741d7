"""Runs the quality pass: the validation loss after an exact number of samples from the trial's seed."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import numpy as np
import torch
from torch import nn

from sweeper.core.codec import encode
from sweeper.core.config import TrialConfig
from sweeper.core.job import Job, MeasurePlan
from sweeper.core.measurement import FailureKind, Quality, Report
from sweeper.core.progress import Progress, TrialFailedError
from sweeper.errors import UserError
from sweeper.trainer.data.order import Epoch, Order
from sweeper.trainer.data.resident import BatchReader
from sweeper.trainer.pipeline import Batch, Pipeline, Samples
from sweeper.trainer.setup import set_up
from sweeper.trainer.step.clocks import NoClock
from sweeper.trainer.step.stepper import Stepper

VALIDATION_BATCH = 4096

T = TypeVar("T")


def run(job: Job, progress: Progress) -> Report:
    """Runs the quality pass as a separate job."""
    progress.stage("build")
    pipeline, stepper, _ = set_up(job, progress)
    progress.stage("quality")
    result = measure(pipeline, stepper, job.plan)
    return Report(values=encode(result), finished_at=time.time())


def measure(pipeline: Pipeline, stepper: Stepper, plan: MeasurePlan) -> Quality:
    """Trains from the seed on exactly `quality_samples` samples in the seed's order, then validates.

    With `plan.until_loss`, training ends after the first part whose validation loss is no higher.

    Batches are gathered on the device (or read from the host, if the data does not fit), whatever
    the trial's loader: the loss depends on the numerics only. The last batch may be smaller; it
    goes through the uncompiled model, rather than compiling another shape for a single step.

    Intermediate validations have no effect on training. There are fewer if they are expensive: a part
    has at least as many training samples as a validation has samples.

    Raises:
        TrialFailedError: A loss is not finite.
    """
    began = time.perf_counter()
    config, samples = stepper.config, pipeline.train
    stepper.reset()
    reader = BatchReader(samples, stepper.device, config.device.memory_fraction)
    clock = NoClock()
    total = torch.zeros((), device=stepper.device)
    curve: list[tuple[int, float]] = []
    num_samples = plan.quality_samples
    parts = min(plan.quality_parts, max(1, num_samples // pipeline.val.length))
    part = num_samples / parts
    seen, due = 0, part if parts > 1 else math.inf
    for index, length in _order(samples, config).first_samples(num_samples).batches():
        stepper.train_batch(reader(index, length), clock, len(index))
        total += stepper.last_loss * len(index)
        seen += len(index)
        # Between optimizer steps only: accumulated gradients are not in the weights yet.
        if due <= seen < num_samples and stepper.micro_steps % config.accumulate_steps == 0:
            with unnoticed(stepper):
                curve.append((seen, validate(pipeline, stepper, stepper.model)))
            due = (seen // part + 1) * part
            if plan.until_loss is not None and curve[-1][1] <= plan.until_loss:
                curve.pop()
                break
    stepper.finish()
    train_loss = total.item() / seen
    val_loss = validate(pipeline, stepper, stepper.model)
    if not (math.isfinite(train_loss) and math.isfinite(val_loss)):
        raise TrialFailedError(
            FailureKind.NON_FINITE,
            f"the loss is not finite after {seen} samples (train {train_loss}, validation {val_loss})",
        )
    return Quality(
        key=f"{config.quality_key()}-{num_samples}",
        samples=seen,
        seconds=time.perf_counter() - began,
        train_loss=train_loss,
        val_loss=val_loss,
        constant_loss=pipeline.constant_loss,
        best_loss=pipeline.best_loss,
        curve=(*(point for point in curve if math.isfinite(point[1])), (seen, val_loss)),
        metrics=metrics_of(pipeline, stepper) if plan.evaluate else {},
    )


@contextlib.contextmanager
def unnoticed(stepper: Stepper) -> Iterator[None]:
    """Allows validation during training without affecting it.

    A pipeline's loss or model may draw random numbers in evaluation, too.
    """
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]), _drawing_aside(stepper.device):
        yield
    random.setstate(states[0])
    np.random.set_state(states[1])


@contextlib.contextmanager
def _drawing_aside(device: torch.device) -> Iterator[None]:
    """Makes a GPU's generator draw from a copy of its state.

    The state is swapped, never set: after a state is set, cuDNN recreates the state of its
    recurrent dropout and frees the one that captured graphs still read.
    """
    if device.type != "cuda":
        yield
        return
    generator = torch.cuda.default_generators[device.index]
    state = generator.graphsafe_get_state()
    generator.graphsafe_set_state(generator.clone_state())
    try:
        yield
    finally:
        generator.graphsafe_set_state(state)


def validate(pipeline: Pipeline, stepper: Stepper, model: nn.Module) -> float:
    """Returns the mean loss over the validation samples, in the trial's precision."""

    def mean(batch_size: int) -> float:
        total = torch.zeros((), device=stepper.device, dtype=torch.float64)
        with _evaluating(model, stepper):
            for batch, size in _batches(pipeline.val, stepper, batch_size):
                total += pipeline.loss(model, batch).double() * size
        return total.item() / pipeline.val.length

    return _run_as_fits(mean, stepper)


def metrics_of(pipeline: Pipeline, stepper: Stepper) -> Mapping[str, float]:
    """Returns the finite metrics from the pipeline's `evaluate` on the validation samples.

    Raises:
        UserError: It does not return numbers by name.
    """
    evaluate = pipeline.evaluate
    if evaluate is None:
        return {}

    def report(batch_size: int) -> Mapping[str, float]:
        # The user's function may take any time without a step.
        with _evaluating(stepper.model, stepper), stepper.progress.steps.paused():
            return evaluate(
                stepper.model, (batch for batch, _ in _batches(pipeline.val, stepper, batch_size))
            )

    reported = _run_as_fits(report, stepper)
    try:
        numbers = {str(name): float(value) for name, value in reported.items()}
    except (AttributeError, TypeError, ValueError):
        raise UserError(f"`evaluate` must return numbers by name, but got {reported!r}.") from None
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def _run_as_fits(run: Callable[[int], T], stepper: Stepper) -> T:
    """Returns the result of `run` with batches of `VALIDATION_BATCH`; if too large, with training's.

    Even without gradients, a large model may have no memory for so many samples.
    """
    with contextlib.suppress(torch.OutOfMemoryError):
        return run(VALIDATION_BATCH)
    torch.cuda.empty_cache()
    return run(min(VALIDATION_BATCH, stepper.config.batch_size))


@contextlib.contextmanager
def _evaluating(model: nn.Module, stepper: Stepper) -> Iterator[None]:
    model.eval()
    # Validation has other shapes, and in evaluation mode the model would be compiled once more.
    with torch.no_grad(), stepper.autocast, stepper.eager():
        yield
    model.train()


def _batches(samples: Samples, stepper: Stepper, batch_size: int) -> Iterator[tuple[Batch, int]]:
    """Yields each sample once, in batches on the device, with the number of samples in each."""
    reader = BatchReader(samples, stepper.device, stepper.config.device.memory_fraction)
    for index, length in _epoch_in_order(samples, stepper.config, batch_size).batches():
        stepper.progress.steps.add()
        yield reader(index, length), len(index)


def _epoch_in_order(samples: Samples, config: TrialConfig, batch_size: int) -> Epoch:
    """Returns each sample once: in order, or by bucket in batches of the training batch size."""
    if samples.lengths is None:
        index = torch.arange(samples.length)
        sizes = [len(part) for part in index.split(batch_size)]
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
