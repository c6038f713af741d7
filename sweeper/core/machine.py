"""What of this machine is ours to use: cores by affinity, control group and SLURM allocation."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP_V2 = Path("/sys/fs/cgroup/cpu.max")
_CGROUP_V1 = Path("/sys/fs/cgroup/cpu")


def usable_cpus() -> int:
    """Returns the smallest of affinity, control-group quota and SLURM allocation, at least 1."""
    limits = [float(len(os.sched_getaffinity(0)))]
    quota = _cgroup_quota()
    if quota is not None:
        limits.append(quota)
    allocated = os.environ.get("SLURM_CPUS_PER_TASK", "")
    if allocated.isdigit():
        limits.append(float(allocated))
    return max(1, int(min(limits)))


def _cgroup_quota() -> float | None:
    try:
        if _CGROUP_V2.exists():
            quota, period = _CGROUP_V2.read_text().split()
            return None if quota == "max" else int(quota) / int(period)
        quota_us = int((_CGROUP_V1 / "cpu.cfs_quota_us").read_text())
        return None if quota_us <= 0 else quota_us / int((_CGROUP_V1 / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None


def cpu_name() -> str:
    """Returns the processor's model name and the number of usable cores."""
    model = "CPU"
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    cores = usable_cpus()
    return f"{model}, {cores} core{'s' if cores != 1 else ''}"
