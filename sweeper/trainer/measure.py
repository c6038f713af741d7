"""A trial: build, warm up until steady, timed windows, step breakdown, quality pass.

build │ first step │ blocks until steady │ window │ window │ window │ breakdown │ quality
──────┼────────────┼─────────────────────┼────────┼────────┼────────┼───────────┼────────
startup  compile     warm-up             sync  sync     sync     sync (CUDA only)  (once per key)
"""

from __future__ import annotations

import math
import resource
import time

import torch

from sweeper.core.job import Job
from sweeper.core.measurement import Breakdown, FailureKind, Measurement, Quality, Window
from sweeper.core.progress import Progress, TrialFailedError
from sweeper.trainer import device as devices
from sweeper.trainer import quality
from sweeper.trainer.data import Loader
from sweeper.trainer.setup import set_up
from sweeper.trainer.step import Clock, EventClock, HostClock, NoClock, Stepper

BLOCK_SECONDS = 0.1
STEADY_SPREAD = 1.10
EVENT_STEPS = 50


def run(job: Job, progress: Progress) -> Measurement:
    """Runs one trial.

    Raises:
        TrialFailedError: The configuration cannot be measured, and it is known why.
    """
    started = time.perf_counter()
    config, plan = job.config, job.plan
    progress.stage("build")
    pipeline, stepper, watch = set_up(job)
    device = stepper.device
    loader = Loader(pipeline.train, config.loader, config.batch_size, config.seed, device)
    info = devices.describe(device)
    progress.device(info)
    timing = _Timing(stepper, loader, HostClock() if device.type == "cpu" else NoClock())
    loader.start()
    startup = time.perf_counter() - started

    progress.stage("warmup")
    first, _, _ = timing.stretch(0.0, 0.0)
    warmup_began = time.perf_counter()
    warmup_steps, steady_step, steady = _warm_up(timing, plan.warmup_cap_seconds)
    timing.reset_clock()

    progress.stage("window")
    windows: list[Window] = []
    skipped_before = int(stepper.skipped.item())
    measuring = time.perf_counter()
    while len(windows) < plan.repeats:
        windows.append(_window(timing, plan.window_seconds, config.global_batch))
        progress.window(windows[-1])
        if time.perf_counter() - measuring > plan.cap_seconds:
            break
    loss, skipped = stepper.last_loss.item(), int(stepper.skipped.item())
    # Training's own peaks: the quality pass has all samples on the device, whatever the loader.
    gpu_peak, host_peak = devices.peak_memory_gib(device), devices.host_peak_gib()
    seconds = sum(window.seconds for window in windows)
    steps = sum(window.steps for window in windows)
    samples = sum(window.samples for window in windows)
    throughput = samples / seconds
    _check_training(loss, samples, (skipped - skipped_before) * config.global_batch)
    breakdown = _breakdown(timing, seconds / steps, steps)
    loader.close()

    result: Quality | None = None
    compute_s = breakdown.forward_s + breakdown.backward_s + breakdown.optimizer_s
    expected = plan.quality_samples / config.batch_size * compute_s
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
        compile_seconds=max(0.0, first - steady_step) if config.compile.mode != "eager" else 0.0,
        compile_cache=watch.cache,
        steady=steady,
        skipped_steps=skipped,
        cpu_threads=torch.get_num_threads(),
        gpu_mem_peak_gib=gpu_peak,
        host_mem_peak_gib=host_peak,
        quality=result,
        effective={**devices.without_effect(config, device), **watch.effective()},
        versions=devices.versions(),
        finished_at=time.time(),
    )


class _Timing:
    """Steps in timed stretches, synchronised at their edges only."""

    def __init__(self, stepper: Stepper, loader: Loader, clock: Clock) -> None:
        self.stepper, self.loader, self.clock = stepper, loader, clock
        self.drain_steps = loader.drain_steps

    def reset_clock(self) -> None:
        if isinstance(self.clock, HostClock):
            self.clock = HostClock()

    def stretch(self, seconds: float, cap_seconds: float) -> tuple[float, int, int]:
        """Runs whole prefetch drains for about `seconds`; returns wall seconds, steps and samples.

        A drain that does not fit into `cap_seconds` is cut.
        """
        stepper, loader, clock, whole = self.stepper, self.loader, self.clock, self.drain_steps
        devices.synchronize(stepper.device)
        began = time.perf_counter()
        steps = samples = 0
        while True:
            samples += stepper.step(loader, clock)
            steps += 1
            elapsed = time.perf_counter() - began
            if elapsed >= cap_seconds or (elapsed >= seconds and steps % whole == 0):
                break
        devices.synchronize(stepper.device)
        return time.perf_counter() - began, steps, samples


def _warm_up(timing: _Timing, cap_seconds: float) -> tuple[int, float, bool]:
    """Trains in blocks until three in a row agree; returns steps, seconds a step, and whether so.

    A block is at least one drain of the prefetch queues, so that batches made during start-up are
    spent before anything is timed.
    """
    began = time.perf_counter()
    blocks: list[float] = []
    total = 0
    while True:
        left = cap_seconds - (time.perf_counter() - began)
        seconds, steps, _ = timing.stretch(BLOCK_SECONDS, left)
        total += steps
        blocks.append(seconds / steps)
        last = blocks[-3:]
        if len(blocks) >= 3 and max(last) <= STEADY_SPREAD * min(last):
            return total, blocks[-1], True
        if time.perf_counter() - began > cap_seconds:
            return total, blocks[-1], False


def _window(timing: _Timing, seconds: float, global_batch: int) -> Window:
    skipped = timing.stepper.skipped.clone()
    before = resource.getrusage(resource.RUSAGE_SELF)
    start = time.perf_counter()
    elapsed, steps, samples = timing.stretch(seconds, 2 * seconds)
    after = resource.getrusage(resource.RUSAGE_SELF)
    lost = int((timing.stepper.skipped - skipped).item()) * global_batch
    return Window(
        start_s=start,
        seconds=elapsed,
        steps=steps,
        samples=max(0, samples - lost),
        cpu_seconds=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        involuntary_switches=after.ru_nivcsw - before.ru_nivcsw,
    )


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
        timing.drain_steps = EVENT_STEPS
        wall, steps, _ = timing.stretch(0.0, step_s * EVENT_STEPS * 2)
        phases = [seconds / steps * (step_s / (wall / steps)) for seconds in clock.seconds]
    else:
        assert isinstance(timing.clock, HostClock)
        phases = [seconds / steps for seconds in timing.clock.seconds]
    data, h2d, forward, backward, optimizer = phases
    return Breakdown(
        data_s=data,
        h2d_s=h2d,
        forward_s=forward,
        backward_s=backward,
        optimizer_s=optimizer,
        host_gap_s=max(0.0, step_s - sum(phases)),
    )
