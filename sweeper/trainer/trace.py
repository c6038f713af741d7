"""The trace job: a few steps under torch's profiler, for chrome://tracing or Perfetto, and their FLOP."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from sweeper.core.job import Job
from sweeper.core.measurement import Report
from sweeper.core.progress import Progress
from sweeper.script.inside.gpu import kernel_spans, union_length
from sweeper.trainer import device as devices
from sweeper.trainer.ceilings import matmul
from sweeper.trainer.data.protocol import Loader
from sweeper.trainer.measure import group_of_one
from sweeper.trainer.setup import set_up
from sweeper.trainer.step.clocks import NoClock
from sweeper.trainer.step.stepper import Stepper
from sweeper.trainer.timing.step_timer import StepTimer

STEPS = 20
TOP = 10
SIDES = {"cpu": 1024, "cuda": 4096}
"""Size of the square matrices that are multiplied to measure a device's speed, by device type."""


def run(job: Job, progress: Progress) -> Report:
    """Warms up, traces `STEPS` steps on one device into the file `job.trace`, and summarises them.

    The profiler slows the steps down, so none of these figures is a throughput. `operations` are
    the longest ones, with their own milliseconds per step, on the device if it is a GPU;
    `device_busy_pct` is the share of time in which a kernel ran, None on the CPU.
    """
    progress.stage("build")
    pipeline, stepper, _ = set_up(job, progress)
    device = stepper.device
    progress.device(devices.describe(device))
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with group_of_one(job, pipeline, stepper) as (group, loader):
        progress.stage("warmup")
        # The steps need not be steady: the profiler changes their speed anyway.
        StepTimer(stepper, loader, group).warm_up(job.plan.warmup_cap_seconds, screen_above=math.inf)
        progress.stage("trace")
        with profile(activities=activities) as profiler:
            # The first step is distorted by the profiler.
            stepper.step(loader, NoClock())
            devices.synchronize(device)
            began = time.perf_counter()
            for _ in range(STEPS):
                stepper.step(loader, NoClock())
            devices.synchronize(device)
            seconds = time.perf_counter() - began
        counted = arithmetic(stepper, loader)
    profiler.export_chrome_trace(job.trace)
    return Report(
        values={
            "steps": STEPS,
            "step_ms": 1e3 * seconds / STEPS,
            **counted,
            **_summary(profiler, seconds, device),
        },
        finished_at=time.time(),
    )


def _summary(profiler: profile, seconds: float, device: torch.device) -> dict[str, Any]:
    """Returns the longest operations, and how busy the device was."""
    on_gpu = device.type == "cuda"
    times: dict[str, float] = {}
    for row in profiler.key_averages():
        # An operation's row repeats the time of its kernels.
        if on_gpu and (row.device_type != DeviceType.CUDA or getattr(row, "is_user_annotation", False)):
            continue
        total = row.self_device_time_total if on_gpu else row.self_cpu_time_total
        times[row.key] = times.get(row.key, 0.0) + total / 1e3 / (STEPS + 1)
    longest = sorted(times.items(), key=lambda item: -item[1])[:TOP]
    busy = None
    if on_gpu and (spans := kernel_spans(profiler)):
        busy = 100 * union_length(spans, max(end for _, end in spans) - 1e6 * seconds) / (1e6 * seconds)
    return {
        "device_busy_pct": None if busy is None else round(min(100.0, busy), 1),
        "operations": {key: round(ms, 4) for key, ms in longest if ms > 0},
    }


def arithmetic(stepper: Stepper, loader: Loader) -> dict[str, Any]:
    """Returns the operations per sample of a step, and those per second of a matrix product.

    The operations of a step are torch's count for matrix products, convolutions and attention; None if
    torch counts none. Recomputed activations count as well. The matrix product is in the step's precision,
    and in bf16 for float8.
    """
    handed = loader.next()
    batch = loader.materialise(loader.to_device(handed.batch), handed.length)
    with (
        _without_fused_cells(stepper.model),
        torch.compiler.set_stance("force_eager"),
        FlopCounterMode(display=False) as counter,
    ):
        stepper.train_through(batch, NoClock(), stepper.model)
    # Torch has no plain matrix product in float8, so float8 is compared with bf16.
    precision = {"fp8": "bf16"}.get(stepper.config.precision.amp, stepper.config.precision.amp)
    device = stepper.device
    reached = matmul(precision, SIDES[device.type], str(device), lambda: devices.synchronize(device))
    return {"flops_per_sample": counter.get_total_flops() / handed.size or None, "matmul_flops": reached}


@contextlib.contextmanager
def _without_fused_cells(model: nn.Module) -> Iterator[None]:
    """Makes recurrent layers compute one product at a time: torch cannot count inside a fused kernel."""
    if not any(isinstance(module, nn.RNNBase) for module in model.modules()):
        yield
        return
    before = torch.backends.cudnn.enabled, torch.backends.mkldnn.enabled
    torch.backends.cudnn.enabled = torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.cudnn.enabled, torch.backends.mkldnn.enabled = before
