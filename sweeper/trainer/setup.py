"""Sets up a job: its device, its pipeline from the seed, the stepper, the compile cache."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch

from sweeper.core.job import Job
from sweeper.core.progress import Progress
from sweeper.trainer import device as devices
from sweeper.trainer import prepare
from sweeper.trainer.pipeline import Pipeline, load_module
from sweeper.trainer.step.compiling import CompileWatch
from sweeper.trainer.step.stepper import Stepper


def set_up(
    job: Job, progress: Progress | None = None, *, rank: int = 0
) -> tuple[Pipeline, Stepper, CompileWatch]:
    """Returns the trial's pipeline, built from its seed, its stepper and its compile watch.

    Args:
        progress: Receives steps and compilation stages.
        rank: Index of the device among the job's devices.
    """
    device = devices.open_device(job.device, rank)
    devices.apply(job.config, device)
    # Each slot has its own cache, so that compilation never waits for another slot's lock. It is named
    # after the slot's first GPU: all eight UUIDs are too long for a folder's name.
    slot = job.device.partition(",")[0]
    watch = CompileWatch(job.config, Path(job.cache) / slot if job.cache else None)
    prepared = prepare.load(job)
    torch.manual_seed(job.config.seed)
    np.random.seed(job.config.seed)
    random.seed(job.config.seed)
    pipeline: Pipeline = load_module(job).build(job.config, prepared)
    return pipeline, Stepper(pipeline, job.config, device, progress), watch
