"""What trials of these steps run beside the shipped pipelines: a runner, and a pipeline that breaks.

`touch` is a trial that does nothing but use the device once. As a pipeline, this module is an MLP whose
loss runs out of memory: inside the capture of its graph on a GPU, at its fourth step elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sweeper.core.config import TrialConfig
from sweeper.core.job import Job
from sweeper.core.measurement import Report
from sweeper.core.progress import Progress
from sweeper.trainer import device as devices
from sweeper.trainer.pipeline import Batch, Pipeline, Prepared, Samples

TOUCH = "gpu_day.jobs:touch"
ROWS, FEATURES = 4096, 16
STEPS_BEFORE = 3


def touch(job: Job, progress: Progress) -> Report:
    """Uses the device once; returns when each part began, by the clock all processes share."""
    at = {"entered": time.monotonic()}
    device = devices.open_device(job.device)
    if device.type == "cuda":
        torch.cuda.init()
        torch.cuda.synchronize(device)
    at["initialised"] = time.monotonic()
    progress.device(devices.describe(device))
    value = float(torch.ones(1000, device=device).sum())
    at["used"] = time.monotonic()
    assert value == 1000.0, value
    return Report(values={"at": at}, finished_at=time.time())


def prepare(data: Mapping[str, Any]) -> Prepared:
    """Draws noise: nothing is to be learnt."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, FEATURES)).astype(np.float32)
    return Prepared(arrays={"x": x, "y": x[:, 0].copy()}, synthetic=True)


def build(config: TrialConfig, prepared: Prepared) -> Pipeline:
    """Returns the training that runs out of memory."""
    tensors = {name: torch.from_numpy(np.asarray(array)) for name, array in prepared.arrays.items()}
    samples = Samples(tensors=tensors, length=ROWS)
    steps = 0

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        nonlocal steps
        steps += 1
        found = nn.functional.mse_loss(model(batch["x"]).squeeze(-1).float(), batch["y"])
        if found.is_cuda and torch.cuda.is_current_stream_capturing():
            total = torch.cuda.get_device_properties(found.device).total_memory
            found = found + torch.empty(2 * total, dtype=torch.uint8, device=found.device).sum()
        elif not found.is_cuda and steps > STEPS_BEFORE:
            raise torch.OutOfMemoryError("CUDA out of memory. (A rehearsal on the CPU.)")
        return found

    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1))
    return Pipeline(model=model, train=samples, val=samples, loss=loss)
