"""Finds the memory nodes of the machine, and binds this process to one."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from sweeper.system.cpu_shares import numbers

NODES = Path("/sys/devices/system/node")
PCI = Path("/sys/bus/pci/devices")
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_PREFERRED = 1


def nodes(root: Path = NODES) -> Mapping[int, frozenset[int]]:
    """Returns the cores of each node that has any."""
    cores_by_node = {}
    for folder in root.glob("node[0-9]*"):
        if cores := frozenset(numbers(folder / "cpulist")):
            cores_by_node[int(folder.name.removeprefix("node"))] = cores
    return cores_by_node


def node_of_gpu(bus_id: str, root: Path = PCI) -> int | None:
    """Returns the node that a PCI device is attached to; None if unknown.

    Args:
        bus_id: The device's address, in NVML's form: `00000000:3B:00.0`.
    """
    domain, _, rest = bus_id.lower().partition(":")
    try:
        node = int((root / f"{domain[-4:]}:{rest}" / "numa_node").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def node_of_process(cores_by_node: Mapping[int, frozenset[int]]) -> int:
    """Returns the node with the most cores that this process may use."""
    mine = os.sched_getaffinity(0)
    return max(sorted(cores_by_node), key=lambda node: len(cores_by_node[node] & mine))


def bind(node: int, cores_by_node: Mapping[int, frozenset[int]]) -> None:
    """Binds this process, and those it starts, to a node's cores, and to its memory while some is free.

    Raises:
        OSError: This process may use none of the node's cores.
    """
    cores = cores_by_node.get(node, frozenset()) & os.sched_getaffinity(0)
    if not cores:
        raise OSError(errno.EINVAL, f"this process may use no core of node {node}")
    os.sched_setaffinity(0, cores)
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return
    mask = ctypes.c_ulong(1 << node)
    # Containers may forbid this. Without it, memory still comes from the node of the core that first uses it.
    ctypes.CDLL(None).syscall(number, _PREFERRED, ctypes.byref(mask), ctypes.c_ulong(8 * ctypes.sizeof(mask)))
