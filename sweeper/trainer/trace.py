"""The trace job: a few steps under torch's profiler, for chrome://tracing or Perfetto."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from sweeper.core.job import Job
from sweeper.core.measurement import Report
from sweeper.core.progress import Progress
from sweeper.inject.gpu import covered, kernel_spans
from sweeper.trainer import device as devices
from sweeper.trainer import flops
from sweeper.trainer.clocks import NoClock
from sweeper.trainer.measure import alone
from sweeper.trainer.setup import set_up
from sweeper.trainer.timing import Timing

STEPS = 20
TOP = 10


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
    with alone(job, pipeline, stepper) as (group, loader):
        progress.stage("warmup")
        # The steps need not be steady: the profiler changes their speed anyway.
        Timing(stepper, loader, group).warm_up(job.plan.warmup_cap_seconds, screen_above=math.inf)
        progress.stage("trace")
        with profile(activities=activities) as found:
            # The first step is distorted by the profiler.
            stepper.step(loader, NoClock())
            devices.synchronize(device)
            began = time.perf_counter()
            for _ in range(STEPS):
                stepper.step(loader, NoClock())
            devices.synchronize(device)
            seconds = time.perf_counter() - began
        counted = flops.measured(stepper, loader)
    found.export_chrome_trace(job.trace)
    return Report(
        values={
            "steps": STEPS,
            "step_ms": 1e3 * seconds / STEPS,
            **counted,
            **_summary(found, seconds, device),
        },
        finished_at=time.time(),
    )


def _summary(found: profile, seconds: float, device: torch.device) -> dict[str, Any]:
    """Returns the longest operations, and how busy the device was."""
    on_gpu = device.type == "cuda"
    taken: dict[str, float] = {}
    for each in found.key_averages():
        # An operation's row repeats the time of its kernels.
        if on_gpu and (each.device_type != DeviceType.CUDA or getattr(each, "is_user_annotation", False)):
            continue
        total = each.self_device_time_total if on_gpu else each.self_cpu_time_total
        taken[each.key] = taken.get(each.key, 0.0) + total / 1e3 / (STEPS + 1)
    longest = sorted(taken.items(), key=lambda item: -item[1])[:TOP]
    busy = None
    if on_gpu and (spans := kernel_spans(found)):
        busy = 100 * covered(spans, max(end for _, end in spans) - 1e6 * seconds) / (1e6 * seconds)
    return {
        "device_busy_pct": None if busy is None else round(min(100.0, busy), 1),
        "operations": {key: round(ms, 4) for key, ms in longest if ms > 0},
    }
