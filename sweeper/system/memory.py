"""How much memory is free, on the machine and in the control group of a batch job or a container."""

from __future__ import annotations

import psutil

from sweeper.system.cpu import control_groups


def group_memory() -> tuple[int, int] | None:
    """Returns the limit and the bytes left of the control group with the least left; None without a limit."""
    names = {
        2: ("memory.max", "memory.current", ("inactive_file", "active_file")),
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
    }
    groups = []
    for folder, version in control_groups("memory"):
        limit_name, used_name, cached_names = names[version]
        try:
            limit = int((folder / limit_name).read_text(encoding="ascii"))
            used = int((folder / used_name).read_text(encoding="ascii"))
            # Cached files are evicted when memory is short.
            stat = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
            cached = sum(int(line.split()[1]) for line in stat if line.split()[0] in cached_names)
        except (OSError, ValueError):
            continue
        groups.append((limit, max(0, limit - used + cached)))
    return min(groups, key=lambda pair: pair[1], default=None)


def available_bytes() -> int:
    """Returns the bytes that may still be allocated, on this machine and in its control group."""
    free, group = int(psutil.virtual_memory().available), group_memory()
    return free if group is None else min(free, group[1])
