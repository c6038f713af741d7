"""Extracts the signals of a bottleneck from a measurement, as shares of a step, for the verdict's rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sweeper.core.measurement import Diagnosis, Measurement
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


class _Split(NamedTuple):
    """How a step splits into its data path and its arithmetic: `Signals` of these names."""

    input: float
    wait: float
    preparation: float
    compute: float

    def within(self, idle: float) -> _Split:
        """Returns the split with the data path limited to the device's idle time; the rest is arithmetic."""
        return _Split(
            input=idle,
            wait=min(self.wait, idle),
            preparation=min(self.preparation, idle),
            compute=self.compute + (self.input - idle),
        )


def signals_of(measurement: Measurement) -> Signals:
    """Returns the signals in a measurement."""
    parts, diagnosis = measurement.breakdown, measurement.diagnosis or Diagnosis()
    step, on_gpu = parts.step_s, measurement.trains_on_gpu
    idle = None if diagnosis.busy_s is None else max(0.0, 1 - diagnosis.busy_s / step)
    split = _split(measurement, diagnosis, idle)
    if idle is not None and is_reported(measurement) and split.input > idle:
        # What a script does to its batch on the GPU is arithmetic.
        split = split.within(idle)
    return Signals(
        on_gpu=on_gpu,
        step_s=step,
        **split._asdict(),
        transfer=parts.h2d_s / step,
        blocked=None if diagnosis.blocked_s is None else min(1.0, diagnosis.blocked_s / step),
        fixed=_fixed_share(diagnosis),
        idle=_unused_share(measurement) if idle is None and on_gpu else idle,
        host_paced=_is_host_paced(diagnosis),
        faults=None if on_gpu else _fault_share(measurement),
        sm_active=_share(measurement, "gpu_sm_active_pct"),
        dram_active=_share(measurement, "gpu_dram_active_pct"),
        memory=_memory_share(measurement),
        sync_places=diagnosis.sync_places,
        rest=parts.host_gap_s / step if is_reported(measurement) else None,
        evaluation=diagnosis.evaluation_share,
        device_rate=diagnosis.device_samples_s,
        loader_rate=diagnosis.loader_samples_s,
        sample_cpu_s=diagnosis.sample_cpu_s,
        loader_busy=diagnosis.loader_busy,
        cpu=_share(measurement, "cpu_util_pct"),
    )


def _split(measurement: Measurement, diagnosis: Diagnosis, idle: float | None) -> _Split:
    """Returns the split that the phases of a step show, with what a loader's processes take from training.

    Args:
        idle: Share of a step in which nothing runs on the device, if it was measured.
    """
    parts, step = measurement.breakdown, measurement.breakdown.step_s
    wait = parts.data_s / step
    lost = wait
    # A loader in the training process costs what its phase takes. One with worker processes
    # also slows down the arithmetic: then it costs the whole difference to the device alone. Waiting
    # by itself would call for more workers where none at all would be fastest.
    if diagnosis.device_samples_s and _helpers_share(measurement) >= HELPERS_SHARE:
        missing = 1 - measurement.throughput / diagnosis.device_samples_s - parts.h2d_s / step
        # Measured alone, a cooler GPU is faster for a moment; that difference is not idle time.
        lost = max(wait, missing if idle is None else min(missing, idle))
    return _Split(
        input=lost,
        wait=wait,
        preparation=(diagnosis.preparation_s or 0.0) / step,
        compute=parts.compute_s / step,
    )


def _helpers_share(measurement: Measurement) -> float:
    """Returns how many cores a loader's processes keep busy while it trains."""
    seconds = sum(window.seconds for window in measurement.windows)
    return sum(window.helper_cpu_seconds for window in measurement.windows) / seconds


def _fixed_share(diagnosis: Diagnosis) -> float | None:
    """Returns the share of the arithmetic that half a batch takes as well as a whole one."""
    if not diagnosis.full_step_s or not diagnosis.half_step_s:
        return None
    return min(1.0, max(0.0, 2 * diagnosis.half_step_s / diagnosis.full_step_s - 1))


def _unused_share(measurement: Measurement) -> float | None:
    """Returns the share of the time in which nothing runs on the GPU, as its driver reports it."""
    utilisation = _share(measurement, "gpu_util_pct")
    return None if utilisation is None else 1 - utilisation


def _is_host_paced(diagnosis: Diagnosis) -> bool | None:
    if diagnosis.busy_s is None or diagnosis.issue_s is None:
        return None
    return diagnosis.issue_s > diagnosis.busy_s


def _memory_share(measurement: Measurement) -> float | None:
    """Returns the peak of the device's memory, as a share of all that it has."""
    peak, total = measurement.gpu_mem_peak_gib, measurement.device.memory_gib
    return peak / total if peak and total else None


def _fault_share(measurement: Measurement) -> float:
    """Returns the share of the training's time in which the kernel maps and clears pages for it."""
    seconds = sum(window.seconds for window in measurement.windows)
    faults = sum(window.minor_faults for window in measurement.windows)
    return min(1.0, faults * FAULT_SECONDS / seconds) if seconds else 0.0


def _share(measurement: Measurement, series: str) -> float | None:
    stats = measurement.telemetry.get(series)
    return None if stats is None else stats.mean / 100
