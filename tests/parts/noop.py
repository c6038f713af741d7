"""Provides a runner that does nothing, so that all time is the orchestrator's."""

from __future__ import annotations

import time

from sweeper.core.job import Job
from sweeper.core.measurement import Breakdown, DeviceInfo, Measurement, Window
from sweeper.core.progress import Progress

RUNNER = "parts.noop:run"
CPU = DeviceInfo(kind="cpu", name="none")
TRAIN_SAMPLES = 1_000_000


def run(job: Job, progress: Progress) -> Measurement:
    """Returns a synthetic measurement that grows with the batch size."""
    progress.device(CPU)
    return synthetic(1000.0 * job.config.batch_size)


def synthetic(throughput: float) -> Measurement:
    """Returns a measurement of `throughput` samples per second that took no time."""
    now, samples = time.perf_counter(), max(1, int(throughput))
    return Measurement(
        throughput=throughput,
        step_ms=1.0,
        epoch_seconds=TRAIN_SAMPLES / throughput,
        train_samples=TRAIN_SAMPLES,
        windows=(Window(start_s=now, seconds=samples / throughput, steps=1000, samples=samples),),
        breakdown=Breakdown(forward_s=1e-3),
        device=CPU,
        startup_seconds=0.0,
        first_step_seconds=0.0,
        warmup_seconds=0.0,
        warmup_steps=0,
        finished_at=time.time(),
    )
