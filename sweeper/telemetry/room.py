"""Says whether a machine has room for more processes: memory of the host and of its GPUs."""

from __future__ import annotations

from collections.abc import Mapping

from sweeper.core.units import GIB
from sweeper.system.memory import available_bytes
from sweeper.telemetry.nvml.devices import gpu_uuids, is_exclusive, memory_used_gib, name_and_memory_gib

MORE_ROOM = 1.25
"""Free memory that other processes need, as a multiple of the memory of the one that runs."""
CONTEXT_GIB = 0.1
"""A process that uses a GPU takes more memory than this."""


def gpu_memory_gib() -> dict[str, float]:
    """Returns the memory that is in use on each GPU, in GiB, by UUID."""
    return {uuid: memory_used_gib(uuid) or 0.0 for uuid in gpu_uuids()}


def has_room(
    count: int, host_gib: float, gpu_gib: Mapping[str, float], in_use_gib: Mapping[str, float]
) -> bool:
    """Returns whether so many more processes may live.

    Args:
        host_gib: Memory of each on the host.
        gpu_gib: Memory of each on the GPUs, by UUID.
        in_use_gib: Memory that is in use on the GPUs (`gpu_memory_gib`).
    """
    if available_bytes() / GIB < MORE_ROOM * count * host_gib:
        return False
    return all(
        in_use_gib.get(uuid, 0.0) + MORE_ROOM * count * gib <= name_and_memory_gib(uuid)[1]
        and not is_exclusive(uuid)
        for uuid, gib in gpu_gib.items()
        if gib >= CONTEXT_GIB
    )
