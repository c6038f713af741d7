"""Measures the parts of a step separately (loader, device, host), for the verdict.

None of this runs inside a window. Each part runs for a tenth of a second, and for at least one step.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from typing import NamedTuple

import psutil
import torch

from sweeper.core.loaders import RESIDENT_SHARE
from sweeper.core.measurement import Diagnosis
from sweeper.system.cpu import usable_cpus
from sweeper.system.process import waited_seconds, waits
from sweeper.trainer import device as devices
from sweeper.trainer.data.protocol import LoadedBatch, Loader
from sweeper.trainer.pipeline import Samples
from sweeper.trainer.step.clocks import ARITHMETIC, BusyClock, NoClock
from sweeper.trainer.step.stepper import Stepper
from sweeper.trainer.support import lacks
from sweeper.trainer.timing.conditions import processor_seconds
from sweeper.trainer.timing.gpu_time import kernel_seconds, queued_seconds, sync_places
from sweeper.trainer.timing.step_timer import StepTimer

PART_SECONDS = 0.1
DRAIN_SECONDS = 0.3
"""Maximum seconds for taking batches that are ready in the queues, before the loader is timed alone."""
ROUNDS = 3
MIN_HALVED = 4
"""Smallest batch that is halved: half of two or three samples is one, which batch normalisation refuses."""

_DISTURBED = 0.1


def diagnose(timer: StepTimer, samples: Samples, step_s: float) -> Diagnosis:
    """Returns separate measurements of the parts of a step of `step_s` seconds.

    With several devices, measurements that need a step on a single device are left out.
    """
    stepper, loader = timer.stepper, timer.loader
    device = stepper.device
    diagnosis = Diagnosis(
        blocked_s=_blocked_seconds(timer) if device.type == "cpu" else None,
        fits_device=_fits(samples, device, stepper.config.device.memory_fraction),
        native_bf16="precision.amp=bf16" not in lacks(devices.describe(device)),
        usable_cpus=usable_cpus(),
    )
    if timer.group.size > 1:
        return diagnosis
    loading = _load_alone(loader, device)
    loaded = loading.loaded
    processes = min(usable_cpus(), max(1, stepper.config.loader.num_workers))
    diagnosis = dataclasses.replace(
        diagnosis,
        loader_samples_s=loading.rate,
        sample_cpu_s=loading.cpu_seconds / loading.samples,
        loader_busy=min(1.0, loading.cpu_seconds / loading.seconds / processes),
    )
    if loader.num_shapes > 1:
        # A batch has one length, but the timed steps had all lengths.
        return diagnosis
    step = _step_on(stepper, loader, loaded)
    alone = _seconds_per_call(step, device, PART_SECONDS, step_s)
    diagnosis = dataclasses.replace(diagnosis, device_samples_s=loaded.size / alone)
    other = _step_of_other_size(stepper, loader, loaded)
    if device.type == "cpu":
        full_s, other_s = _alternate(step, other) if other else (None, None)
        return dataclasses.replace(
            diagnosis, full_step_s=full_s, half_step_s=_half_seconds(loaded, full_s, other_s)
        )
    return _diagnose_device(diagnosis, timer, loaded, step, other, alone)


def _step_of_other_size(stepper: Stepper, loader: Loader, loaded: LoadedBatch) -> Callable[[], None] | None:
    """Returns a step on half a batch, or on two if it is too small; None if neither can be measured."""
    if stepper.compiles or stepper.captured is not None:
        # For a compiler, half a batch would be another shape.
        return None
    if loaded.size >= MIN_HALVED:
        return _step_on(stepper, loader, _half_of(loaded))
    if _has_room_for_two(stepper.device, stepper.config.device.memory_fraction):
        return _step_on(stepper, loader, _double(loaded))
    return None


def _diagnose_device(
    diagnosis: Diagnosis,
    timer: StepTimer,
    loaded: LoadedBatch,
    step: Callable[[], None],
    other: Callable[[], None] | None,
    alone: float,
) -> Diagnosis:
    """Returns a diagnosis with what the GPU and the host do in a step (CUDA).

    Args:
        loaded: The batch of `step`.
        other: A step on a batch of another size.
        alone: Seconds per call of `step`.
    """
    stepper, device = timer.stepper, timer.stepper.device
    steps_per_update = stepper.config.accumulate_steps
    # A captured step cannot wait.
    places = () if stepper.captured else sync_places(lambda: timer.stepper.step(timer.loader, NoClock()))
    busy, issue = queued_seconds(step, device, steps_per_update, alone)
    if busy is None:
        # The step waits for the device, or launches more kernels than its queue holds (some 1,000).
        busy = kernel_seconds(step, device, steps_per_update)
        if busy is not None and busy < alone and not places:
            # Nothing in the step waits, so the slower side sets its pace: the host.
            issue = alone
    other_s = None
    if other and busy:
        # The first step of a size waits while cuDNN tries its algorithms, or the driver loads kernels.
        other()
        other_s, _ = queued_seconds(other, device, steps_per_update, alone)
    return dataclasses.replace(
        diagnosis,
        busy_s=busy,
        issue_s=issue,
        sync_places=places,
        full_step_s=busy,
        half_step_s=_half_seconds(loaded, busy, other_s),
    )


def _blocked_seconds(timer: StepTimer) -> float:
    """Returns the seconds of a step's arithmetic in which this process neither ran nor waited for a core."""
    clock = BusyClock()
    before = waits(os.getpid())
    steps = timer.stretch(clock, PART_SECONDS, max_seconds=2 * PART_SECONDS).steps
    # The thread that waited longest counts: threads of one operation wait at the same time.
    waited = max(
        (after - before.get(thread, 0.0) for thread, after in waits(os.getpid()).items()), default=0.0
    )
    idle = sum(max(0.0, clock.wall[phase] - clock.cpu[phase]) for phase in ARITHMETIC)
    return max(0.0, idle - waited) / steps


def _fits(samples: Samples, device: torch.device, memory_fraction: float) -> bool:
    """Returns whether the training data would fit on the device in addition to what is there."""
    if samples.on_host:
        return False
    if device.type == "cuda":
        total = torch.cuda.mem_get_info(device)[1]
        return samples.nbytes <= min(devices.free_bytes(device, memory_fraction), RESIDENT_SHARE * total)
    return samples.nbytes <= RESIDENT_SHARE * psutil.virtual_memory().available


class _LoadedBatches(NamedTuple):
    """Batches that were loaded while nothing trained.

    Attributes:
        cpu_seconds: Processor seconds of all processes.
        loaded: A full batch, on the device.
    """

    seconds: float
    cpu_seconds: float
    samples: int
    loaded: LoadedBatch

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds


def _load_alone(loader: Loader, device: torch.device) -> _LoadedBatches:
    """Loads without training."""
    whole: LoadedBatch | None = None
    began = time.perf_counter()
    # Batches that are ready in the queues say nothing about the loader's sustained speed.
    for _ in range(max(loader.drain_steps, 2 * loader.period_steps)):
        _hand(loader)
        if time.perf_counter() - began > DRAIN_SECONDS:
            break
    devices.synchronize(device)
    began, before = time.perf_counter(), processor_seconds()
    count = 0
    while whole is None or time.perf_counter() - began < PART_SECONDS:
        loaded = _hand(loader)
        count += loaded.size
        if whole is None or loaded.size > whole.size:
            whole = loaded
    devices.synchronize(device)
    return _LoadedBatches(time.perf_counter() - began, processor_seconds() - before, count, whole)


def _hand(loader: Loader) -> LoadedBatch:
    batch, size, length = loader.next()
    return LoadedBatch(loader.to_device(batch), size, length)


def _step_on(stepper: Stepper, loader: Loader, loaded: LoadedBatch) -> Callable[[], None]:
    """Returns a function that trains on `loaded` like the trial's steps, but without its loader."""
    if stepper.captured is not None and loaded.size == stepper.config.batch_size:
        return lambda: stepper.replay(loaded)
    batch = loader.materialise(loaded.batch, loaded.length)
    return lambda: stepper.train_batch(batch, NoClock(), loaded.size)


def _half_of(loaded: LoadedBatch) -> LoadedBatch:
    size = loaded.size // 2
    return LoadedBatch(
        {name: tensor[:size].clone() for name, tensor in loaded.batch.items()}, size, loaded.length
    )


def _double(loaded: LoadedBatch) -> LoadedBatch:
    batch = {name: torch.cat([tensor, tensor]) for name, tensor in loaded.batch.items()}
    return LoadedBatch(batch, 2 * loaded.size, loaded.length)


def _has_room_for_two(device: torch.device, memory_fraction: float) -> bool:
    """Returns whether a step could use twice the memory that steps have used."""
    if device.type == "cuda":
        used = torch.cuda.max_memory_allocated(device)
        return used <= devices.free_bytes(device, memory_fraction)
    return psutil.Process().memory_info().rss <= psutil.virtual_memory().available


def _half_seconds(loaded: LoadedBatch, full_s: float | None, other_s: float | None) -> float | None:
    """Returns the seconds of half a batch; one too small to halve is extrapolated from its double."""
    if full_s is None or other_s is None or loaded.size >= MIN_HALVED:
        return other_s
    return full_s - (other_s - full_s) / 2


def _seconds_per_call(
    step: Callable[[], None], device: torch.device, seconds: float, step_s: float = 0.0
) -> float:
    step()
    devices.synchronize(device)
    began = time.perf_counter()
    calls = 0
    pace = devices.Pace(device, step_s)
    while not calls or time.perf_counter() - began < seconds:
        step()
        calls += 1
        pace.step()
    devices.synchronize(device)
    return (time.perf_counter() - began) / calls


def _alternate(full: Callable[[], None], half: Callable[[], None]) -> tuple[float | None, float | None]:
    """Returns the seconds of two steps on the CPU, each the best of some short alternating turns.

    Turns alternate so that both meet the same conditions; the best counts because disturbance only
    adds time. Turns in which the process had to wait for a core do not count; None if none are
    left.
    """
    turns: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
        for times, step in zip(turns, (full, half), strict=True):
            before, began = waited_seconds(os.getpid()), time.perf_counter()
            seconds = _seconds_per_call(step, torch.device("cpu"), PART_SECONDS / (2 * ROUNDS))
            elapsed, after = time.perf_counter() - began, waited_seconds(os.getpid())
            if before is None or after is None or after - before <= _DISTURBED * elapsed:
                times.append(seconds)
    return (min(turns[0]), min(turns[1])) if all(turns) else (None, None)
