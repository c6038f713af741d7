"""Names the GPU that slows down the others: GPUs that train together wait for the slowest in each step."""

from __future__ import annotations

import statistics

from sweeper.core.contamination import SHARE
from sweeper.core.gpu_series import by_rank
from sweeper.core.measurement import Measurement

MIN_LAG = 0.05
"""A straggler's clock is lower than the others' by at least this share."""

_HELD = {
    "gpu_throttled": "heat or a power brake holds it down",
    "gpu_power_capped": "at its power limit",
}


def straggler(measurement: Measurement, count: int) -> str:
    """Returns which GPU runs more slowly than the others, by its clock, and why; empty if none does.

    Utilisation does not show it: a GPU that waits for the others also runs a kernel.

    Args:
        count: GPUs that the trial ran on.
    """
    gpus = by_rank(measurement.telemetry, count)
    clocks = {
        rank: its["gpu_sm_clock_mhz"].mean for rank, its in enumerate(gpus) if "gpu_sm_clock_mhz" in its
    }
    if len(clocks) < 2:
        return ""
    slowest = min(clocks, key=lambda rank: clocks[rank])
    others = statistics.median(clock for rank, clock in clocks.items() if rank != slowest)
    if clocks[slowest] > (1 - MIN_LAG) * others:
        return ""
    its = gpus[slowest]
    why = [reason for name, reason in _HELD.items() if name in its and its[name].mean > SHARE]
    held = f" ({', '.join(why)})" if why else ""
    return (
        f"GPU {slowest} of {count} is the straggler: it ran at {clocks[slowest]:.0f} MHz{held}, "
        f"the others at {others:.0f} MHz"
    )
