"""A runner that does nothing: what is left of a trial's time is the orchestrator's own."""

from __future__ import annotations

import time

from sweeper.core.job import Job
from sweeper.core.measurement import Breakdown, DeviceInfo, Measurement, Window
from sweeper.core.progress import Progress

RUNNER = "sweeper.testing.noop:run"


def run(job: Job, progress: Progress) -> Measurement:
    """Returns a made-up measurement that grows with the batch size."""
    now = time.perf_counter()
    info = DeviceInfo(kind="cpu", name="none")
    progress.device(info)
    throughput = 1000.0 * job.config.batch_size
    return Measurement(
        throughput=throughput,
        step_ms=1.0,
        epoch_seconds=1e6 / throughput,
        train_samples=1_000_000,
        windows=(Window(start_s=now, seconds=1.0, steps=1000, samples=int(throughput)),),
        breakdown=Breakdown(forward_s=1e-3),
        device=info,
        startup_seconds=0.0,
        first_step_seconds=0.0,
        warmup_seconds=0.0,
        warmup_steps=0,
        finished_at=time.time(),
    )
