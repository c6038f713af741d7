"""Measures a trial: build, warm-up, timed windows, step breakdown, diagnosis, quality pass.

build │ first step │ blocks until steady │ window │ window │ window │ breakdown │ diagnosis │ quality
──────┼────────────┼─────────────────────┼────────┼────────┼────────┼───────────┼───────────┼────────
startup  compile     warm-up             sync  sync     sync     sync (CUDA only)  parts alone  (if asked for)
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import torch

from sweeper.core.job import Job
from sweeper.core.measurement import Breakdown, Diagnosis, FailureKind, Measurement, Quality
from sweeper.core.progress import Progress, TrialFailedError
from sweeper.trainer import device as devices
from sweeper.trainer import quality
from sweeper.trainer.data import make_loader
from sweeper.trainer.data.protocol import Loader
from sweeper.trainer.on_demand import RequestFiles
from sweeper.trainer.pipeline import Pipeline
from sweeper.trainer.setup import set_up
from sweeper.trainer.step.clocks import BACKWARD, DATA, FORWARD, GRAPH, H2D, OPTIMIZER, EventClock, NoClock
from sweeper.trainer.step.compiling import CompileWatch
from sweeper.trainer.step.group import Group, leave
from sweeper.trainer.step.stepper import Stepper
from sweeper.trainer.timing.diagnose import diagnose
from sweeper.trainer.timing.step_timer import StepTimer
from sweeper.trainer.timing.windows import WindowSet

MIN_EVENT_STEPS, EVENT_STEPS, MAX_EVENT_STEPS = 4, 50, 2000
BREAKDOWN_SECONDS = 3.0
RESUMED_SEED_STEP = 1_000_003
"""Distance between the seeds of a rank that resumes after one batch and after the next."""

T = TypeVar("T")


def run(job: Job, progress: Progress) -> Measurement:
    """Runs one trial.

    Raises:
        TrialFailedError: The configuration cannot be measured, for a known reason.
    """
    return run_in_group(
        job,
        lambda group, step_pipe: follow(job, group, step_pipe),
        lambda group: _measure(job, progress, group),
    )


def run_in_group(job: Job, following: Callable[[Group, int], None], leading: Callable[[Group], T]) -> T:
    """Runs `leading` as rank 0 of the job's devices, and `following` on each of the others.

    Raises:
        TrialFailedError: There are fewer devices than the job requests.
    """
    count, num_available = job.config.device.count, len(job.device.split(","))
    if job.device != "cpu" and count > num_available:
        raise TrialFailedError(
            FailureKind.UNSUPPORTED,
            f"`device.count` must not exceed the GPUs of a trial here ({num_available}), but got {count}",
        )
    with contextlib.closing(Group.start(count, following)) as group:
        try:
            return leading(group)
        except Exception as error:
            group.end_if_follower_caused(error)
            raise


def _measure(job: Job, progress: Progress, group: Group) -> Measurement:
    began = time.perf_counter()
    config, plan = job.config, job.plan
    progress.stage("build")
    pipeline, stepper, watch = set_up(job, progress)
    device = stepper.device
    loader = join_group(job, group, pipeline, stepper)
    info = devices.describe(device)
    progress.device(info)
    loader.start()
    timer = StepTimer(stepper, loader, group)
    startup = time.perf_counter() - began

    progress.stage("warmup")
    first = timer.first_step()
    warmup_began = time.perf_counter()
    warmup = timer.warm_up(plan.warmup_cap_seconds, plan.screen_above)

    progress.stage("window")
    windows_began = time.perf_counter()
    turns = RequestFiles(Path(job.turns_folder)) if job.turns_folder else None
    timed = timer.take_windows(plan, config.global_batch, progress, turns)
    # Peaks of training only: the quality pass has all samples on the device, whatever the loader.
    gpu_peak, host_peak = devices.peak_memory_gib(device), devices.host_peak_gib()
    throughput = timed.samples / timed.seconds
    _check_training(stepper.last_loss.item(), timed.samples, timed.lost)
    breakdown = _breakdown(timer, timed)
    skipped_steps = int(stepper.skipped.item())
    effective = _effective_settings(job, pipeline, stepper, watch)
    diagnosis = _diagnosis(timer, pipeline, timed) if plan.diagnose else None
    loader.close()
    group.close()
    if group.size > 1:
        stepper.leave_group()

    loss_quality: Quality | None = None
    expected_quality_seconds = plan.quality_samples / config.batch_size * breakdown.compute_s
    is_affordable = expected_quality_seconds <= plan.quality_cap_seconds
    if plan.quality_samples and throughput >= plan.quality_above and is_affordable:
        progress.stage("quality")
        loss_quality = quality.measure(pipeline, stepper, plan)
    return Measurement(
        throughput=throughput,
        step_ms=1e3 * timed.seconds / timed.steps,
        epoch_seconds=pipeline.train.length / throughput,
        train_samples=pipeline.train.length,
        windows=timed.kept,
        breakdown=breakdown,
        device=info,
        startup_seconds=startup,
        first_step_seconds=first.seconds,
        warmup_seconds=first.seconds + windows_began - warmup_began,
        warmup_steps=first.steps + warmup.steps,
        compile_seconds=max(0.0, first.seconds - warmup.step_seconds) if watch.compiles else 0.0,
        compile_cache=watch.cache,
        steady=warmup.steady,
        skipped_steps=skipped_steps,
        cpu_threads=torch.get_num_threads(),
        gpu_mem_peak_gib=gpu_peak,
        host_mem_peak_gib=host_peak,
        quality=loss_quality,
        diagnosis=diagnosis,
        repeated_windows=timed.repeated,
        is_screened=timed.is_screened,
        effective=effective,
        versions=devices.versions(),
        finished_at=time.time(),
    )


def join_group(job: Job, group: Group, pipeline: Pipeline, stepper: Stepper, begin: int = 0) -> Loader:
    """Makes the loader of this rank's share, captures the step if configured, and connects the ranks.

    Args:
        begin: Number of batches taken before.

    Returns:
        The loader, which has not started.

    Raises:
        TrialFailedError: The step cannot be captured, here or on several devices.
    """
    config = job.config
    captures = config.compile.captures_step
    if captures and group.size > 1:
        raise TrialFailedError(
            FailureKind.UNSUPPORTED,
            f"`compile.mode: graph` supports only one device, but got device.count={group.size}",
        )
    loader = make_loader(
        pipeline.train,
        config.loader,
        config.batch_size,
        config.seed,
        stepper.device,
        index_only=captures,
        share=(group.rank, group.size),
        begin=begin,
    )
    if captures:
        stepper.capture(loader)
    if group.size > 1:
        group.connect(stepper.device)
        stepper.join_group(group.rank)
    return loader


@contextlib.contextmanager
def group_of_one(job: Job, pipeline: Pipeline, stepper: Stepper) -> Iterator[tuple[Group, Loader]]:
    """Yields a group of one device, and its loader, which has started."""
    with (
        contextlib.closing(Group.start(1, lambda _, step_pipe: None)) as group,
        contextlib.closing(join_group(job, group, pipeline, stepper)) as loader,
    ):
        loader.start()
        yield group, loader


def follow(
    job: Job,
    group: Group,
    step_pipe: int,
    begin: int = 0,
    restore: Callable[[Stepper, Loader], None] | None = None,
) -> None:
    """Runs a rank other than 0: takes a step for each byte from `step_pipe`.

    Args:
        begin: Number of batches taken before.
        restore: Restores the stepper's state at that point.
    """
    pipeline, stepper, _ = set_up(job, rank=group.rank)
    loader = join_group(job, group, pipeline, stepper, begin)
    if restore is not None:
        restore(stepper, loader)
        # A checkpoint has the first rank's random numbers; this one's must not start over.
        torch.manual_seed(job.config.seed + group.rank + RESUMED_SEED_STEP * begin)
    loader.start()
    clock = NoClock()
    while os.read(step_pipe, 1):
        stepper.step(loader, clock)
    leave()
    loader.close()


def _effective_settings(
    job: Job, pipeline: Pipeline, stepper: Stepper, watch: CompileWatch
) -> Mapping[str, str]:
    """Returns what ran instead of the requested settings, by field."""
    settings = {
        **devices.ineffective_settings(job.config, stepper.device),
        **stepper.refused,
        **watch.effective_mode(),
    }
    if job.config.device.count > 1 and not job.config.loader.drop_last:
        settings["loader.drop_last"] = "true: devices that train together take whole batches"
    if job.config.loader.buckets > 1 and pipeline.train.lengths is None:
        settings["loader.buckets"] = "without effect: the samples have no lengths"
    return settings


def _check_training(loss: float, samples: int, lost: int) -> None:
    """Checks that training works; `lost` samples went into skipped steps."""
    if lost > 0.1 * (samples + lost):
        raise TrialFailedError(
            FailureKind.AMP_UNSTABLE,
            f"fp16 skipped {lost / (samples + lost):.0%} of its steps because of overflow; bf16 avoids this",
        )
    if not math.isfinite(loss):
        raise TrialFailedError(FailureKind.NON_FINITE, f"the training loss became {loss} while measuring")


def _diagnosis(timer: StepTimer, pipeline: Pipeline, timed: WindowSet) -> Diagnosis | None:
    """Returns the diagnosis; None if it runs out of memory, which does not affect the trial."""
    try:
        return diagnose(timer, pipeline.train, timed.seconds / timed.steps)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return None


def _breakdown(timer: StepTimer, timed: WindowSet) -> Breakdown:
    """Returns the phases of a step: from the windows on the CPU, from additional steps on CUDA."""
    step_s = timed.seconds / timed.steps
    if timer.stepper.device.type == "cuda":
        clock = EventClock()
        steps = _num_event_steps(step_s, timer.loader.period_steps)
        stretch = timer.stretch(clock, 0.0, max_seconds=2 * steps * step_s, drain_steps=steps)
        # Recording events slows the host, so only the proportions count.
        phases = [seconds / stretch.seconds * step_s for seconds in clock.seconds]
    else:
        phases = [seconds / timed.steps for seconds in timed.phases]
    return Breakdown(
        data_s=phases[DATA],
        h2d_s=phases[H2D],
        forward_s=phases[FORWARD],
        backward_s=phases[BACKWARD],
        optimizer_s=phases[OPTIMIZER],
        graph_s=phases[GRAPH],
        host_gap_s=max(0.0, step_s - sum(phases)),
    )


def _num_event_steps(step_s: float, period_steps: int) -> int:
    """Returns how many steps record events: about `EVENT_STEPS`, or what `BREAKDOWN_SECONDS` allow."""
    affordable = int(BREAKDOWN_SECONDS / step_s)
    wanted = max(MIN_EVENT_STEPS, min(EVENT_STEPS, affordable))
    # One step of a period loads for all of it: in a part of a period, its share would be wrong.
    whole_periods = math.ceil(wanted / period_steps) * period_steps
    return min(whole_periods, MAX_EVENT_STEPS, max(wanted, affordable))
