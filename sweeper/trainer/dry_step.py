"""The dry-step job: builds a configuration, takes two training steps and describes them."""

from __future__ import annotations

import math
import time

from sweeper.core.job import Job
from sweeper.core.measurement import FailureKind, Report
from sweeper.core.progress import Progress, TrialFailedError
from sweeper.errors import UserError
from sweeper.trainer import device as devices
from sweeper.trainer.data.protocol import Loader
from sweeper.trainer.measure import group_of_one
from sweeper.trainer.pipeline import Batch, Samples
from sweeper.trainer.setup import set_up
from sweeper.trainer.step.clocks import NoClock
from sweeper.trainer.step.stepper import Stepper

STEPS = 2


def run(job: Job, progress: Progress) -> Report:
    """Builds the job's configuration on its first device, and takes `STEPS` steps with its loader.

    `losses` and `step_seconds` have a value per step (the first step includes one-off work);
    `peak_gib` is the allocator's peak on a GPU, and the process's peak on the CPU. `data_bytes` and
    `batch_bytes` are the sizes of the tensors of the training samples and of one batch. If the
    pipeline rejects the configuration, the only value is `refused`, the reason.

    Raises:
        TrialFailedError: A loss is not finite, or the configuration cannot run here.
    """
    progress.stage("build")
    try:
        pipeline, stepper, _ = set_up(job, progress)
    except UserError as error:
        return Report(values={"refused": str(error)}, finished_at=time.time())
    progress.device(devices.describe(stepper.device))
    with group_of_one(job, pipeline, stepper) as (_, loader):
        batch = _batch(loader)
        progress.stage("steps")
        steps = [_step(stepper, loader) for _ in range(STEPS)]
        gpu_peak = devices.peak_memory_gib(stepper.device)
    return Report(
        values={
            "train_samples": pipeline.train.length,
            "val_samples": pipeline.val.length,
            "data_bytes": _bytes(pipeline.train),
            "batch": {
                name: {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
                for name, tensor in batch.items()
            },
            "batch_bytes": sum(tensor.nbytes for tensor in batch.values()),
            "parameters": sum(parameter.numel() for parameter in stepper.model.parameters()),
            "losses": [loss for loss, _ in steps],
            "step_seconds": [seconds for _, seconds in steps],
            "peak_gib": devices.host_peak_gib() if gpu_peak is None else gpu_peak,
        },
        finished_at=time.time(),
    )


def _batch(loader: Loader) -> Batch:
    """Returns a batch in the form that the model gets."""
    handed = loader.next()
    return loader.materialise(loader.to_device(handed.batch), handed.length)


def _step(stepper: Stepper, loader: Loader) -> tuple[float, float]:
    """Takes a full step with all its micro-batches; returns its last loss and its seconds."""
    began = time.perf_counter()
    for _ in range(stepper.config.accumulate_steps):
        stepper.step(loader, NoClock())
    loss = stepper.last_loss.item()
    devices.synchronize(stepper.device)
    seconds = time.perf_counter() - began
    if not math.isfinite(loss):
        raise TrialFailedError(
            FailureKind.NON_FINITE, f"the training loss became {loss} within {STEPS} steps"
        )
    return loss, seconds


def _bytes(samples: Samples) -> int | None:
    """Returns the bytes of samples in tensors; None if they are read from elsewhere."""
    return None if samples.on_host else samples.nbytes
