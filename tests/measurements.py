"""Measurements whose step is put together from shares: of a CPU and of a GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from sweeper.core.config import Scalar, TrialConfig
from sweeper.core.measurement import Breakdown, DeviceInfo, Diagnosis, Measurement, Stats, Window
from sweeper.core.record import TrialRecord
from sweeper.results.verdict.signals import FAULT_SECONDS

CPU = DeviceInfo(kind="cpu", name="EPYC")
GPU = DeviceInfo(kind="cuda", name="NVIDIA A10", uuid="GPU-1", memory_gib=20.0)
STEP_SECONDS, BATCH = 0.01, 64
THROUGHPUT = BATCH / STEP_SECONDS
STEPS, WINDOWS = 300, 2


def series(percent: float) -> Stats:
    """A telemetry series that stays where it is."""
    return Stats(mean=percent, p50=percent, p95=percent)


def measurement(
    *,
    gpu: bool = False,
    data: float = 0.0,
    h2d: float = 0.0,
    gap: float = 0.0,
    helpers: float = 0.0,
    faults: float = 0.0,
    fixed: float | None = None,
    blocked: float | None = None,
    idle: float | None = None,
    issue: float | None = None,
    memory: float | None = None,
    telemetry: Mapping[str, float] | None = None,
    diagnosed: bool = True,
    windows: Mapping[str, Any] | None = None,
    more: Mapping[str, Any] | None = None,
    **diagnosis: Any,
) -> Measurement:
    """A trial by shares of its step; what is left to the arithmetic is forward, backward, optimiser.

    Args:
        helpers: Cores that the loader's processes take.
        faults: Share of the step in which pages are mapped.
        fixed: Share of the arithmetic that does not depend on the batch.
        issue: Share of the step that the host needs to launch it.
        memory: Share of the GPU's memory.
        telemetry: Percentages by series.
        diagnosed: Whether the parts were run on their own; figures of that by name in `diagnosis`.
        windows: Fields of the windows; `more`: of the measurement.
    """
    compute = 1.0 - data - h2d - gap
    step = STEP_SECONDS
    if fixed is not None:
        # Of two halves, twice the fixed part.
        diagnosis |= {"full_step_s": step, "half_step_s": step * (fixed + (1 - fixed) / 2)}
    if blocked is not None:
        diagnosis["blocked_s"] = blocked * step
    if idle is not None:
        diagnosis["busy_s"] = (1 - idle) * step
    if issue is not None:
        diagnosis["issue_s"] = issue * step
    seconds = STEPS * step
    window = Window(
        start_s=100.0,
        seconds=seconds,
        steps=STEPS,
        samples=STEPS * BATCH,
        cpu_seconds=seconds * (1 + helpers),
        helper_cpu_seconds=seconds * helpers,
        minor_faults=round(faults * seconds / FAULT_SECONDS),
    )
    window = dataclasses.replace(window, **(windows or {}))
    return Measurement(
        throughput=THROUGHPUT,
        step_ms=1e3 * step,
        epoch_seconds=100.0,
        train_samples=round(100 * THROUGHPUT),
        windows=tuple(dataclasses.replace(window, start_s=100.0 + 5 * i) for i in range(WINDOWS)),
        breakdown=Breakdown(
            data_s=data * step,
            h2d_s=h2d * step,
            forward_s=0.3 * compute * step,
            backward_s=0.5 * compute * step,
            optimizer_s=0.2 * compute * step,
            host_gap_s=gap * step,
        ),
        device=GPU if gpu else CPU,
        startup_seconds=0.5,
        first_step_seconds=0.2,
        warmup_seconds=1.5,
        warmup_steps=100,
        gpu_mem_peak_gib=None if memory is None else memory * GPU.memory_gib,
        telemetry={name: series(value) for name, value in (telemetry or {}).items()},
        diagnosis=Diagnosis(**{"usable_cpus": 4, **diagnosis}) if diagnosed else None,
        **(more or {}),
    )


def record_of(found: Measurement | Any, number: int = 7, **changes: Scalar) -> TrialRecord:
    """A searched trial with this outcome; changes of its configuration by name, `__` for the dot."""
    config = TrialConfig().replace({name.replace("__", "."): value for name, value in changes.items()})
    return TrialRecord(number=number, uid=f"s/{number:04d}", stage="search", config=config, outcome=found)
