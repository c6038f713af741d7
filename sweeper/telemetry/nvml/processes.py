"""Other processes on a trial's GPU: how many disturb it, and how much memory they hold."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from sweeper.core.units import GIB
from sweeper.system.process import tree
from sweeper.telemetry.nvml.binding import NOT_FOUND, SUCCESS, Device, NotThisTimeError, code_of, is_final

_MPS_SERVER = "nvidia-cuda-mps"


def compute_processes(nvml: Any, handle: Any) -> dict[int, int | None]:
    """Returns the compute processes on a device, and the bytes that each holds, if reported."""
    # nvidia-ml-py before 12.550 has no such error.
    mismatch = getattr(nvml, "NVMLLibraryMismatchError", ())
    try:
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except mismatch:
        processes = nvml.nvmlDeviceGetComputeRunningProcesses_v2(handle)
    listed = {int(process.pid): process.usedGpuMemory for process in processes}
    servers = set(filter(_is_mps_server, listed))
    if not servers:
        return listed
    # In place of MPS's clients, NVML lists the server that computes for them.
    with contextlib.suppress(Exception):
        clients = nvml.nvmlDeviceGetMPSComputeRunningProcesses(handle)
        listed.update({int(client.pid): client.usedGpuMemory for client in clients})
    return {pid: used for pid, used in listed.items() if pid not in servers}


def _is_mps_server(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").startswith(_MPS_SERVER)
    except OSError:
        return False


class ForeignProcesses:
    """Compute processes that are not the trial's; reading holds the driver's lock for milliseconds.

    If the driver reports utilisation per process, one that only holds memory (a notebook) does not
    count as disturbing. Otherwise every process counts.

    In a container, NVML may report the machine's process IDs: in the list, or in the utilisation only
    (seen with driver 560). One of them is then the trial's, but it is unknown which.
    """

    names = ("gpu_foreign_processes", "gpu_foreign_mem_gib")

    def __init__(self, nvml: Any, device: Device, pid: int) -> None:
        self._nvml, self._device, self._pid = nvml, device, pid
        self._tree_pids: set[int] = set()
        self._listed_before: set[int] = set()
        self._is_numbered_as_here = False
        # Instances have no utilisation per process.
        self._reports_busy = not device.is_mig_instance
        # Only processes that run during this trial count; NVML's times are microseconds since 1970.
        self._seen = int(time.time() * 1e6)

    def read(self) -> dict[str, float | Exception]:
        """Returns the number of processes busy since the last call, and the memory of all."""
        listed = compute_processes(self._nvml, self._device.handle)
        self._tree_pids.update(tree(self._pid))
        self._is_numbered_as_here |= not self._tree_pids.isdisjoint(listed)
        busy = self._busy_pids()
        # A process that has exited since the last call was there for part of the time.
        recent_pids = listed.keys() | self._listed_before
        self._listed_before = set(listed)
        tree_pids = self._tree_pids if self._is_numbered_as_here else set()
        is_one_own = not self._is_numbered_as_here
        if busy is None:
            # There is no utilisation per process: all that are listed count.
            disturbing = listed.keys() - tree_pids
        elif busy & recent_pids or not busy:
            # The IDs of the busy processes are those of the list.
            disturbing = busy & (recent_pids - tree_pids)
        else:
            # The IDs of the busy processes are the machine's: one of them is the trial's.
            disturbing, is_one_own = busy, True
        return {
            "gpu_foreign_processes": float(max(0, len(disturbing) - is_one_own)),
            "gpu_foreign_mem_gib": self._memory(listed),
        }

    def _busy_pids(self) -> set[int] | None:
        if not self._reports_busy:
            return None
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(self._device.handle, self._seen)
        except self._nvml.NVMLError as error:
            # Two ways to say that nothing is new: not found, or a count of zero.
            if code_of(error) in (NOT_FOUND, SUCCESS):
                return set()
            if not is_final(error):
                raise
            self._reports_busy = False
            return None
        self._seen = max((self._seen, *(int(sample.timeStamp) for sample in samples)))
        # Some drivers pad the list with empty or nonsensical rows.
        return {int(sample.pid) for sample in samples if sample.pid and 0 < sample.smUtil <= 100}

    def _memory(self, listed: dict[int, int | None]) -> float | Exception:
        if listed and not self._is_numbered_as_here:
            return NotThisTimeError("NVML reports the machine's process IDs, not this container's")
        reported = [used for pid, used in listed.items() if pid not in self._tree_pids]
        sizes = [used for used in reported if used is not None]
        return sum(sizes) / GIB if sizes or not reported else NotThisTimeError("not reported for other users")
