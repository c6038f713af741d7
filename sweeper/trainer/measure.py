"""A trial: build, warm up until steady, timed windows, step breakdown, quality pass.

build │ first step │ blocks until steady │ window │ window │ window │ breakdown │ quality
──────┼────────────┼─────────────────────┼────────┼────────┼────────┼───────────┼────────
startup  compile     warm-up             sync  sync     sync     sync (CUDA only)  (once per key)
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import time
from collections.abc import Mapping

import torch

from sweeper.core.job import Job
from sweeper.core.measurement import Breakdown, FailureKind, Measurement, Quality, Window
from sweeper.core.progress import Progress, TrialFailedError
from sweeper.trainer import device as devices
from sweeper.trainer import quality
from sweeper.trainer.clocks import (
    BACKWARD,
    DATA,
    FORWARD,
    GRAPH,
    H2D,
    OPTIMIZER,
    Clock,
    EventClock,
    HostClock,
    NoClock,
)
from sweeper.trainer.compiling import CompileWatch
from sweeper.trainer.conditions import canary_ms, read_conditions
from sweeper.trainer.data import make_loader
from sweeper.trainer.data.loader import Loader
from sweeper.trainer.group import Group
from sweeper.trainer.pipeline import Pipeline
from sweeper.trainer.setup import set_up
from sweeper.trainer.steady import is_steady
from sweeper.trainer.step import Stepper

BLOCK_SECONDS = 0.1
SETTLE_SECONDS = 0.02
EVENT_STEPS, MAX_EVENT_STEPS = 50, 2000


def run(job: Job, progress: Progress) -> Measurement:
    """Runs one trial.

    Raises:
        TrialFailedError: The configuration cannot be measured, and it is known why.
    """
    count, room = job.config.device.count, len(job.device.split(","))
    if job.device != "cpu" and count > room:
        raise TrialFailedError(
            FailureKind.UNSUPPORTED,
            f"`device.count` must not exceed the {room} GPUs of a trial here, but got {count}",
        )
    with contextlib.closing(Group.start(count, lambda own, orders: _follow(job, own, orders))) as group:
        try:
            return _measured(job, progress, group)
        except Exception as error:
            group.blame(error)
            raise


def _measured(job: Job, progress: Progress, group: Group) -> Measurement:
    started = time.perf_counter()
    config, plan = job.config, job.plan
    progress.stage("build")
    pipeline, stepper, watch = set_up(job)
    device = stepper.device
    loader = _joined(job, group, pipeline, stepper)
    info = devices.describe(device)
    progress.device(info)
    loader.start()
    clock: Clock = HostClock() if device.type == "cpu" else NoClock()
    timing = _Timing(stepper, loader, clock, group)
    startup = time.perf_counter() - started

    progress.stage("warmup")
    first, _, _ = timing.stretch(0.0, 0.0)
    warmup_began = time.perf_counter()
    warmup_steps, steady_step, steady = _warm_up(timing, plan.warmup_cap_seconds)
    timing.reset_clock()

    progress.stage("window")
    windows: list[Window] = []
    lost = 0
    measuring = time.perf_counter()
    canary = canary_ms()
    while len(windows) < plan.repeats:
        timing.settle()
        window, skipped = _window(timing, plan.window_seconds, config.global_batch)
        lost += skipped
        before, canary = canary, canary_ms()
        windows.append(dataclasses.replace(window, canary_ms=max(before, canary)))
        progress.window(windows[-1])
        if time.perf_counter() - measuring > plan.cap_seconds:
            break
    # Training's own peaks: the quality pass has all samples on the device, whatever the loader.
    gpu_peak, host_peak = devices.peak_memory_gib(device), devices.host_peak_gib()
    seconds = sum(window.seconds for window in windows)
    steps = sum(window.steps for window in windows)
    samples = sum(window.samples for window in windows)
    throughput = samples / seconds
    _check_training(stepper.last_loss.item(), samples, lost)
    breakdown = _breakdown(timing, seconds / steps, steps)
    effective = _effective(job, pipeline, stepper, watch)
    skipped_steps = int(stepper.skipped.item())
    loader.close()
    group.close()
    if group.size > 1:
        stepper.part()

    result: Quality | None = None
    expected = plan.quality_samples / config.batch_size * breakdown.compute_s
    if plan.quality_samples and throughput >= plan.quality_above and expected <= plan.quality_cap_seconds:
        progress.stage("quality")
        result = quality.measure(pipeline, stepper, plan.quality_samples)
    return Measurement(
        throughput=throughput,
        step_ms=1e3 * seconds / steps,
        epoch_seconds=pipeline.train.length / throughput,
        train_samples=pipeline.train.length,
        windows=tuple(windows),
        breakdown=breakdown,
        device=info,
        startup_seconds=startup,
        first_step_seconds=first,
        warmup_seconds=first + measuring - warmup_began,
        warmup_steps=1 + warmup_steps,
        compile_seconds=max(0.0, first - steady_step) if watch.compiles else 0.0,
        compile_cache=watch.cache,
        steady=steady,
        skipped_steps=skipped_steps,
        cpu_threads=torch.get_num_threads(),
        gpu_mem_peak_gib=gpu_peak,
        host_mem_peak_gib=host_peak,
        quality=result,
        effective=effective,
        versions=devices.versions(),
        finished_at=time.time(),
    )


def _joined(job: Job, group: Group, pipeline: Pipeline, stepper: Stepper) -> Loader:
    """Connects the stepper to its group, and returns the loader of its share."""
    config = job.config
    graph = config.compile.mode == "graph"
    if graph and group.size > 1:
        raise TrialFailedError(
            FailureKind.UNSUPPORTED,
            f"`compile.mode: graph` captures the step of one device, but device.count={group.size}",
        )
    loader = make_loader(
        pipeline.train,
        config.loader,
        config.batch_size,
        config.seed,
        stepper.device,
        index_only=graph,
        share=(group.rank, group.size),
    )
    if graph:
        stepper.capture(loader)
    if group.size > 1:
        group.connect(stepper.device)
        stepper.join(group.rank)
    return loader


def _follow(job: Job, group: Group, orders: int) -> None:
    """A rank beside the trial's own: a step for each byte, until there are no more."""
    pipeline, stepper, _ = set_up(job, group.rank)
    loader = _joined(job, group, pipeline, stepper)
    loader.start()
    clock = NoClock()
    while os.read(orders, 1):
        stepper.step(loader, clock)
    loader.close()


def _effective(job: Job, pipeline: Pipeline, stepper: Stepper, watch: CompileWatch) -> Mapping[str, str]:
    """Returns what ran in place of what was asked for, by field."""
    found = {**devices.without_effect(job.config, stepper.device), **watch.effective()}
    if job.config.device.count > 1 and not job.config.loader.drop_last:
        found["loader.drop_last"] = "true: devices that train together take whole batches"
    if job.config.loader.buckets > 1 and pipeline.train.lengths is None:
        found["loader.buckets"] = "without effect: the samples have no lengths"
    return found


class _Timing:
    """Steps in timed stretches, synchronised at their edges only."""

    def __init__(self, stepper: Stepper, loader: Loader, clock: Clock, group: Group) -> None:
        self.stepper, self.loader, self.clock, self.group = stepper, loader, clock, group
        self.drain_steps = loader.drain_steps

    def reset_clock(self) -> None:
        if isinstance(self.clock, HostClock):
            self.clock = HostClock()

    def settle(self) -> None:
        """Trains for a moment, untimed: queues which filled up during a pause are drained again."""
        clock, self.clock = self.clock, NoClock()
        self.stretch(SETTLE_SECONDS, SETTLE_SECONDS)
        self.clock = clock

    def stretch(self, seconds: float, cap_seconds: float) -> tuple[float, int, int]:
        """Runs whole prefetch drains for about `seconds`; returns wall seconds, steps and samples.

        A drain that does not fit into `cap_seconds` is cut.
        """
        stepper, loader, clock, whole = self.stepper, self.loader, self.clock, self.drain_steps
        group = self.group
        devices.synchronize(stepper.device)
        began = time.perf_counter()
        steps = samples = 0
        pace = devices.Pace(stepper.device)
        while True:
            group.lead()
            samples += group.size * stepper.step(loader, clock)
            steps += 1
            pace.step()
            elapsed = time.perf_counter() - began
            if elapsed >= cap_seconds or (elapsed >= seconds and steps % whole == 0):
                break
        devices.synchronize(stepper.device)
        return time.perf_counter() - began, steps, samples


def _warm_up(timing: _Timing, cap_seconds: float) -> tuple[int, float, bool]:
    """Trains in blocks until they are steady; returns steps, seconds a step, and whether so.

    A block is at least one drain of the prefetch queues, so that batches made during start-up are
    spent before anything is timed. Each shape that is compiled or captured must have come by.
    """
    began = time.perf_counter()
    blocks: list[float] = []
    total = 0
    while True:
        left = cap_seconds - (time.perf_counter() - began)
        seconds, steps, _ = timing.stretch(BLOCK_SECONDS, left)
        total += steps
        blocks.append(seconds / steps)
        if is_steady(blocks) and timing.stepper.has_seen(timing.loader.num_shapes):
            return total, blocks[-1], True
        if time.perf_counter() - began > cap_seconds:
            return total, blocks[-1], False


def _window(timing: _Timing, seconds: float, global_batch: int) -> tuple[Window, int]:
    """Returns a timed window, and the samples of steps in it that the scaler skipped."""
    skipped = timing.stepper.skipped.clone()
    before = read_conditions()
    start = time.perf_counter()
    elapsed, steps, samples = timing.stretch(seconds, 2 * seconds)
    after = read_conditions()
    lost = int((timing.stepper.skipped - skipped).item()) * global_batch
    window = Window(
        start_s=start,
        seconds=elapsed,
        steps=steps,
        samples=max(0, samples - lost),
        cpu_seconds=after.cpu_seconds - before.cpu_seconds,
        # A thread that ends takes its count with it.
        involuntary_switches=max(0, after.involuntary_switches - before.involuntary_switches),
        steal_seconds=after.steal_seconds - before.steal_seconds,
        pressure_seconds=None
        if after.pressure_seconds is None or before.pressure_seconds is None
        else after.pressure_seconds - before.pressure_seconds,
        load=after.load,
    )
    return window, lost


def _check_training(loss: float, samples: int, lost: int) -> None:
    """Speed counts only for training that works: `lost` samples went into steps that were skipped."""
    if lost > 0.1 * (samples + lost):
        raise TrialFailedError(
            FailureKind.AMP_UNSTABLE,
            f"fp16 skipped {lost / (samples + lost):.0%} of its steps for overflow; bf16 does not overflow",
        )
    if not math.isfinite(loss):
        raise TrialFailedError(FailureKind.NON_FINITE, f"the training loss became {loss} while measuring")


def _breakdown(timing: _Timing, step_s: float, steps: int) -> Breakdown:
    """Returns the phases of a step: of the windows themselves on the CPU, of some more steps on CUDA."""
    if timing.stepper.device.type == "cuda":
        clock = EventClock()
        timing.clock = clock
        period = timing.loader.period_steps
        timing.drain_steps = min(-(-EVENT_STEPS // period) * period, MAX_EVENT_STEPS)
        wall, steps, _ = timing.stretch(0.0, step_s * timing.drain_steps * 2)
        phases = [seconds / steps * (step_s / (wall / steps)) for seconds in clock.seconds]
    else:
        assert isinstance(timing.clock, HostClock)
        phases = [seconds / steps for seconds in timing.clock.seconds]
    return Breakdown(
        data_s=phases[DATA],
        h2d_s=phases[H2D],
        forward_s=phases[FORWARD],
        backward_s=phases[BACKWARD],
        optimizer_s=phases[OPTIMIZER],
        graph_s=phases[GRAPH],
        host_gap_s=max(0.0, step_s - sum(phases)),
    )
