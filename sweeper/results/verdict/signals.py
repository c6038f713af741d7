"""Extracts the signals of a bottleneck from a measurement, as shares of a step, for the verdict's rules."""

from __future__ import annotations

from dataclasses import dataclass

from sweeper.core.measurement import Measurement
from sweeper.core.workload import is_reported

FAULT_SECONDS = 1.1e-6
"""Cost of a page that the kernel maps and clears, from an LSTM's step on an EPYC."""

HELPERS_SHARE = 0.05
"""Share of a core below which a loader's processes do not slow down training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """Shares of a step (0 to 1); None if a signal is missing.

    Attributes:
        on_gpu: Whether the trial ran on a CUDA device.
        step_s: Wall seconds of a step.
        input: Lost to the data path: waiting, gathering, and what its processes take from training.
        wait: The part of `input` in which the step itself waits or gathers.
        preparation: The part of `wait` in which a script changes its batch, in the training process.
        transfer: Copies to the device.
        compute: Forward, backward, optimiser.
        blocked: Waiting for something other than data or a core, from forward to optimiser.
        fixed: The part of `compute` that does not depend on the batch: launches, Python, tiny
            operations.
        idle: Time in which nothing ran on the device (CUDA).
        host_paced: Whether the host launches more slowly than the device works (CUDA).
        faults: Mapping and clearing pages.
        sm_active, dram_active: From the GPU's performance counters.
        memory: Peak of the device's memory.
        sync_places: Lines of the user's code that wait for the device in each step (CUDA).
        rest: What a script does between its steps: logging, metrics, its own Python; None for a
            pipeline, whose loop is not the user's.
        evaluation: Share of a script's time that evaluations take between its steps.
        device_rate, loader_rate: Samples per second of each on its own.
        sample_cpu_s: Processor seconds of loading a sample.
        loader_busy: Share of the time in which the loader's processes run, with the loader alone.
        cpu: Utilisation of the cores that this trial may use.
    """

    on_gpu: bool
    step_s: float
    input: float
    wait: float
    preparation: float = 0.0
    transfer: float
    compute: float
    blocked: float | None = None
    fixed: float | None = None
    idle: float | None = None
    host_paced: bool | None = None
    faults: float | None = None
    sm_active: float | None = None
    dram_active: float | None = None
    memory: float | None = None
    sync_places: tuple[str, ...] | None = None
    rest: float | None = None
    evaluation: float | None = None
    device_rate: float | None = None
    loader_rate: float | None = None
    sample_cpu_s: float | None = None
    loader_busy: float | None = None
    cpu: float | None = None


def signals_of(measurement: Measurement) -> Signals:
    """Returns the signals in a measurement."""
    parts, diagnosis = measurement.breakdown, measurement.diagnosis
    step = parts.step_s
    seconds = sum(window.seconds for window in measurement.windows)
    on_gpu = measurement.trains_on_gpu
    wait, compute = parts.data_s / step, parts.compute_s / step
    preparation = ((diagnosis and diagnosis.preparation_s) or 0.0) / step
    lost = wait
    fixed = idle = host_paced = blocked = None
    if diagnosis is not None:
        if diagnosis.full_step_s and diagnosis.half_step_s:
            fixed = min(1.0, max(0.0, 2 * diagnosis.half_step_s / diagnosis.full_step_s - 1))
        if diagnosis.blocked_s is not None:
            blocked = min(1.0, diagnosis.blocked_s / step)
        if diagnosis.busy_s is not None:
            idle = max(0.0, 1 - diagnosis.busy_s / step)
            if diagnosis.issue_s is not None:
                host_paced = diagnosis.issue_s > diagnosis.busy_s
        # A loader in the training process costs what its phase takes. One with worker processes
        # also slows down the arithmetic: then it costs the whole difference to the device alone. Waiting
        # by itself would call for more workers where none at all would be fastest.
        helpers = sum(window.helper_cpu_seconds for window in measurement.windows) / seconds
        if diagnosis.device_samples_s and helpers >= HELPERS_SHARE:
            missing = 1 - measurement.throughput / diagnosis.device_samples_s - parts.h2d_s / step
            # Measured alone, a cooler GPU is faster for a moment; that difference is not idle time.
            lost = max(wait, missing if idle is None else min(missing, idle))
        if idle is not None and is_reported(measurement) and lost > idle:
            # What a script does to its batch on the GPU is arithmetic.
            compute += lost - idle
            lost, wait, preparation = idle, min(wait, idle), min(preparation, idle)
    if idle is None and on_gpu and (utilisation := _share(measurement, "gpu_util_pct")) is not None:
        idle = 1 - utilisation
    gpu_memory = measurement.gpu_mem_peak_gib
    return Signals(
        on_gpu=on_gpu,
        step_s=step,
        input=lost,
        wait=wait,
        preparation=preparation,
        transfer=parts.h2d_s / step,
        compute=compute,
        blocked=blocked,
        fixed=fixed,
        idle=idle,
        host_paced=host_paced,
        faults=None if on_gpu else _fault_share(measurement),
        sm_active=_share(measurement, "gpu_sm_active_pct"),
        dram_active=_share(measurement, "gpu_dram_active_pct"),
        memory=gpu_memory / measurement.device.memory_gib
        if gpu_memory and measurement.device.memory_gib
        else None,
        sync_places=diagnosis.sync_places if diagnosis else None,
        rest=parts.host_gap_s / step if is_reported(measurement) else None,
        evaluation=diagnosis.evaluation_share if diagnosis else None,
        device_rate=diagnosis.device_samples_s if diagnosis else None,
        loader_rate=diagnosis.loader_samples_s if diagnosis else None,
        sample_cpu_s=diagnosis.sample_cpu_s if diagnosis else None,
        loader_busy=diagnosis.loader_busy if diagnosis else None,
        cpu=_share(measurement, "cpu_util_pct"),
    )


def _fault_share(measurement: Measurement) -> float:
    """Returns the share of the training's time in which the kernel maps and clears pages for it."""
    seconds = sum(window.seconds for window in measurement.windows)
    faults = sum(window.minor_faults for window in measurement.windows)
    return min(1.0, faults * FAULT_SECONDS / seconds) if seconds else 0.0


def _share(measurement: Measurement, series: str) -> float | None:
    stats = measurement.telemetry.get(series)
    return None if stats is None else stats.mean / 100
