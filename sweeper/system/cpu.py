"""Counts the cores this process may use, by affinity, control group and SLURM allocation."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
_SLURM = ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE")


def usable_cpus() -> int:
    """Returns the smallest of affinity, control-group quotas and SLURM allocation, at least 1."""
    return max(1, int(min(cpu_limits().values())))


def cpu_limits() -> Mapping[str, float]:
    """Returns how many cores each limit on this process allows, by the limit's name."""
    limits = {"affinity": float(len(os.sched_getaffinity(0)))}
    if quotas := list(_cgroup_quotas()):
        limits["the control group's quota"] = min(quotas)
    return limits | {name: float(value) for name in _SLURM if (value := os.environ.get(name, "")).isdigit()}


def control_groups(controller: str) -> Iterator[tuple[Path, int]]:
    """Yields folder and version (1 or 2) of this process's control groups and their ancestors."""
    try:
        lines = _OWN_CGROUP.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines or ["0::/"]:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, version = _CGROUPS, 2
        elif controller in controllers.split(","):
            root, version = _CGROUPS / controller, 1
        else:
            continue
        # In a container the path may be the host's and not exist; its root always does.
        group = root / path.strip("/")
        for folder in (group, *group.parents):
            yield folder, version
            if folder == root:
                break


def _cgroup_quotas() -> Iterator[float]:
    """Yields the quotas, in cores, of this process's control groups and their ancestors."""
    for folder, version in control_groups("cpu"):
        with contextlib.suppress(OSError, ValueError):
            yield _quota_v2(folder) if version == 2 else _quota_v1(folder)


def _quota_v2(folder: Path) -> float:
    quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
    return int(quota) / int(period)


def _quota_v1(folder: Path) -> float:
    quota = int((folder / "cpu.cfs_quota_us").read_text(encoding="ascii"))
    if quota <= 0:
        raise ValueError("no quota")
    return quota / int((folder / "cpu.cfs_period_us").read_text(encoding="ascii"))


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
