"""Finds the function that runs a job, and imports its module only when it is needed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

from sweeper.core import job as jobs
from sweeper.core.job import Job
from sweeper.core.measurement import Measurement, Report
from sweeper.core.modules import search_first
from sweeper.core.progress import Progress

Runner = Callable[[Job, Progress], Measurement | Report]

RUNNERS: Mapping[str, str] = {
    jobs.TRIAL_RUNNER: "sweeper.trainer.measure:run",
    jobs.QUALITY_RUNNER: "sweeper.trainer.quality:run",
    jobs.PREPARE_RUNNER: "sweeper.trainer.prepare:run",
    jobs.PROBE_RUNNER: "sweeper.trainer.probe:run",
    jobs.TRACE_RUNNER: "sweeper.trainer.trace:run",
    jobs.GPU_CHECK_RUNNER: "sweeper.trainer.gpu_check:run",
    jobs.DRY_STEP_RUNNER: "sweeper.trainer.dry_step:run",
    jobs.PREFLIGHT_RUNNER: "sweeper.trainer.preflight:run",
    jobs.CEILINGS_RUNNER: "sweeper.trainer.ceilings:run",
    jobs.SCRIPT_RUNNER: "sweeper.script.trial:run",
    jobs.SCRIPT_QUALITY_RUNNER: "sweeper.script.trial:run_for_loss",
    jobs.TRAINING_RUNNER: "sweeper.trainer.production:run",
}


def runner_of(job: Job) -> Runner:
    """Returns the function that `job.runner` names.

    Raises:
        ImportError: There is no such module.
        AttributeError: There is no such function in the module.
    """
    if job.runner not in RUNNERS:
        search_first(job.import_paths)
    module, _, function = RUNNERS.get(job.runner, job.runner).partition(":")
    runner: Runner = getattr(importlib.import_module(module), function)
    return runner
