"""Waits until a GPU has freed the memory of the trial before."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from sweeper.core.job import ANYWHERE
from sweeper.telemetry.nvml.probe import memory_used_gib

PATIENCE_SECONDS = 10.0
POLL_SECONDS = 0.1
SLACK_GIB = 0.25
CPU = "cpu"

Used = Callable[[str], float | None]


class MemoryWaiter:
    """Knows the least that each device has held, and waits until it holds no more: one look, mostly.

    What stays is somebody else's: it is waited for once, and is then what the device holds. A device that
    NVML does not tell of is not asked again.
    """

    def __init__(self, devices: Sequence[str], used: Used = memory_used_gib) -> None:
        """Looks at each device.

        Args:
            devices: As a slot names them: UUIDs with commas between, or `cpu`.
        """
        self._used = used
        self._least = {uuid: used(uuid) for uuid in uuids_of(devices)}

    def wait(self, device: str) -> None:
        """Returns when the device's memory is back, or after ten seconds: somebody else may hold it."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        for uuid in uuids_of([device]):
            least = self._least.get(uuid)
            if least is None:
                continue
            while (now := self._used(uuid)) is not None and now > least + SLACK_GIB:
                if time.monotonic() >= deadline:
                    break
                time.sleep(POLL_SECONDS)
            else:
                now = None if now is None else min(least, now)
            self._least[uuid] = now


def uuids_of(devices: Sequence[str]) -> list[str]:
    """Returns the UUIDs of this machine's GPUs among slots: none of a CPU, nor of a worker elsewhere."""
    return [uuid for names in devices if names not in (CPU, ANYWHERE) for uuid in names.split(",")]
