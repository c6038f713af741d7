"""The preflight job: takes a few training steps and says whether a configuration runs here."""

from __future__ import annotations

import time

from sweeper.core.config import CompileConfig
from sweeper.core.job import Job
from sweeper.core.measurement import Report
from sweeper.core.progress import Progress
from sweeper.trainer import device as devices
from sweeper.trainer.measure import group_of_one
from sweeper.trainer.setup import set_up
from sweeper.trainer.step.clocks import NoClock
from sweeper.trainer.step.graph import EAGER_STEPS
from sweeper.trainer.step.stepper import RECORDED_AT

STEPS = 2
FIRST_STEPS = {"graph": EAGER_STEPS + 1, **RECORDED_AT}
"""Steps before the mode runs as usual: eager ones, and the captured one."""


def run(job: Job, progress: Progress) -> Report:
    """Takes two steps of the job's configuration on its first device, after any graph capture.

    The loss is ignored: the question is whether the configuration runs, not how it trains.

    Raises:
        TrialFailedError: The configuration cannot run here, for a known reason.
    """
    progress.stage("build")
    pipeline, stepper, _ = set_up(job, progress)
    progress.device(devices.describe(stepper.device))
    count = steps_of(job.config.compile)
    with group_of_one(job, pipeline, stepper) as (_, loader):
        progress.stage("steps")
        for _ in range(count * job.config.accumulate_steps):
            stepper.step(loader, NoClock())
        devices.synchronize(stepper.device)
    return Report(values={"steps": count}, finished_at=time.time())


def steps_of(config: CompileConfig) -> int:
    """Returns how many steps it takes to see whether a compile mode runs."""
    return FIRST_STEPS.get(config.mode, 0) + STEPS
