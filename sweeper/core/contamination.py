"""Decides whether a window was disturbed: by other processes, or by clocks held down."""

from __future__ import annotations

from collections.abc import Mapping

from sweeper.core.measurement import Window

COUNTING = 0.02
"""Error in processor time, which is counted in hundredths of a second, as a share of the trial's own."""

SHARE = 0.05
"""Share of a window that others may take before it is measured again."""

MIN_SECONDS = 0.04
"""Shorter disturbances do not count: the kernel counts each core's time in hundredths of a second."""

CANARY_RATIO = 1.3
MIN_CLOCK_PCT = 75.0
"""Lowest undisturbed clock in percent of the default: NVBench drops timings below three quarters of it."""


def of_host(window: Window, quiet_canary_ms: float) -> tuple[str, ...]:
    """Returns what disturbed `window` on the host's side.

    Other processes disturb a window only while the trial's threads wait for a core: with cores to
    spare they do no harm. Waiting alone is no proof, since a trial whose own workers outnumber the
    cores also waits.

    Args:
        quiet_canary_ms: The canary's time on this machine when nothing else runs; 0 where unknown.
    """
    min_seconds = max(SHARE * window.seconds, MIN_SECONDS, COUNTING * window.cpu_seconds)
    waited = window.waited_seconds if window.waited_seconds is not None else window.pressure_seconds
    disturbances = []
    if waited is not None and min(window.foreign_cpu_seconds, waited) >= min_seconds:
        disturbances.append("other processes took cores")
    if window.steal_seconds >= max(SHARE * window.cpu_seconds, MIN_SECONDS):
        disturbances.append("the host took cores (steal)")
    if not disturbances and quiet_canary_ms and window.canary_ms > CANARY_RATIO * quiet_canary_ms:
        disturbances.append("the processor was slow (canary)")
    return tuple(disturbances)


def of_gpu(values: Mapping[str, float]) -> tuple[str, ...]:
    """Returns what disturbed a window on the GPU.

    Args:
        values: Means over the window by series name; an absent series shows no disturbance.
    """
    disturbances = []
    if values.get("gpu_foreign_processes", 0.0) > 0:
        disturbances.append("other processes used the GPU")
    if values.get("gpu_throttled", 0.0) > SHARE:
        disturbances.append("heat or a power brake held the GPU's clocks down")
    # A card under a power cap runs below its default clock whenever it is busy.
    capped = values.get("gpu_power_capped", 0.0) > SHARE
    if values.get("gpu_clock_pct", 100.0) < MIN_CLOCK_PCT and not capped:
        disturbances.append(f"the GPU's clock was below {MIN_CLOCK_PCT:.0f}% of its default")
    return tuple(disturbances)
