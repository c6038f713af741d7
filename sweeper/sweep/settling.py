"""Waiting until a GPU has its memory back from a trial that failed on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from sweeper.telemetry.nvml import memory_used_gib

PATIENCE_SECONDS = 10.0
POLL_SECONDS = 0.1
SLACK_GIB = 0.25
CPU = "cpu"

Used = Callable[[str], float | None]


class Settling:
    """Knows what the devices held before the first trial, and waits until they hold no more than that."""

    def __init__(self, devices: Sequence[str], used: Used = memory_used_gib) -> None:
        """Looks at each device.

        Args:
            devices: As a slot names them: UUIDs with commas between, or `cpu`.
        """
        self._used = used
        self._before = {uuid: used(uuid) for names in devices for uuid in _uuids(names)}

    def wait(self, device: str) -> None:
        """Returns when the device's memory is back, or after ten seconds: somebody else may hold it."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        for uuid in _uuids(device):
            before = self._before.get(uuid)
            while before is not None and time.monotonic() < deadline:
                now = self._used(uuid)
                if now is None or now <= before + SLACK_GIB:
                    break
                time.sleep(POLL_SECONDS)


def _uuids(device: str) -> list[str]:
    return [] if device == CPU else device.split(",")
