"""Waits until a GPU has freed the memory of the previous trial."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from sweeper.core.job import ANYWHERE
from sweeper.telemetry.nvml.devices import memory_used_gib

PATIENCE_SECONDS = 10.0
POLL_SECONDS = 0.1
SLACK_GIB = 0.25
CPU = "cpu"

Used = Callable[[str], float | None]


class MemoryWaiter:
    """Waits until each device is back at its lowest memory use so far; usually one check is enough.

    Memory that is not freed belongs to other processes: it delays one trial, and is then part of the device's
    minimum. A device that NVML does not know is not asked again.
    """

    def __init__(self, devices: Sequence[str], used: Used = memory_used_gib) -> None:
        """Reads the memory of each device.

        Args:
            devices: Devices as slots name them: UUIDs separated by commas, or `cpu`.
            used: Function that returns a GPU's used memory in GiB; None if that is unknown.
        """
        self._used = used
        self._min_gib = {uuid: used(uuid) for uuid in uuids_of(devices)}

    def wait(self, device: str) -> None:
        """Returns once the device's memory is free, or after ten seconds: other processes may hold it."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        for uuid in uuids_of([device]):
            min_gib = self._min_gib.get(uuid)
            if min_gib is None:
                continue
            while (now := self._used(uuid)) is not None and now > min_gib + SLACK_GIB:
                if time.monotonic() >= deadline:
                    break
                time.sleep(POLL_SECONDS)
            else:
                now = None if now is None else min(min_gib, now)
            self._min_gib[uuid] = now


def uuids_of(devices: Sequence[str]) -> list[str]:
    """Returns the UUIDs of this machine's GPUs among the devices; none for a CPU or a remote worker."""
    return [uuid for names in devices if names not in (CPU, ANYWHERE) for uuid in names.split(",")]
