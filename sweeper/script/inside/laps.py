"""Measures the seconds of each phase, of the process or of its GPU."""

from __future__ import annotations

import os
import time
from typing import Any

_WAIT_ASLEEP = "GOMP_SPINCOUNT" in os.environ or os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive"
cpu_seconds = time.process_time if _WAIT_ASLEEP else time.thread_time
"""Clock of the seconds in which a training computes. By default idle threads spin, so only the thread that
trains counts; where idle threads sleep, it may sleep while others compute, so the process counts."""

DATA, PREPARATION, FORWARD, BACKWARD, OPTIMIZER, OTHER, EVALUATION = (
    *("data", "preparation", "forward", "backward", "optimizer", "rest", "evaluation"),
)
"""Phases of a step. `OTHER` is what the script does between its optimizer and its loader."""
ARITHMETIC = (FORWARD, BACKWARD, OPTIMIZER)


class Laps:
    """Wall and processor seconds by phase, since the object was made.

    Attributes:
        host: Wall seconds of the process.
        cpu: Seconds in which the process computed.
    """

    def __init__(self) -> None:
        self.host: dict[str, float] = {}
        self.cpu: dict[str, float] = {}
        self._wall_s, self._cpu_s = time.perf_counter(), cpu_seconds()

    def lap(self, name: str) -> None:
        """Adds the time since the last lap to a phase."""
        wall_s, cpu_s = time.perf_counter(), cpu_seconds()
        self.host[name] = self.host.get(name, 0.0) + wall_s - self._wall_s
        self.cpu[name] = self.cpu.get(name, 0.0) + cpu_s - self._cpu_s
        self._wall_s, self._cpu_s = wall_s, cpu_s

    @property
    def wall(self) -> dict[str, float]:
        """Seconds of a training by phase."""
        return self.host

    @property
    def arithmetic_s(self) -> float:
        """Seconds of forward, backward and optimizer."""
        wall = self.wall
        return sum(wall.get(name, 0.0) for name in ARITHMETIC)


class DeviceLaps(Laps):
    """Laps on the timeline of a GPU; its gaps belong to the phase in which it has nothing to do.

    The process does not wait for the GPU: phases that it runs ahead of a busy GPU take no time.

    Args:
        device: Device of the loss; None is torch's current one.
    """

    def __init__(self, torch: Any, device: Any) -> None:
        super().__init__()
        self._cuda, self._device = torch.cuda, device
        self._stream = torch.cuda.current_stream(device)
        self._marks = [("", self._mark())]

    def lap(self, name: str) -> None:
        """Adds the time since the last lap to a phase."""
        super().lap(name)
        if not self._cuda.is_current_stream_capturing():
            self._marks.append((name, self._mark()))

    def _mark(self) -> Any:
        mark = self._cuda.Event(enable_timing=True)
        mark.record(self._stream)
        return mark

    @property
    def wall(self) -> dict[str, float]:
        """Seconds of a training by phase; waits for the GPU."""
        self._cuda.synchronize(self._device)
        seconds: dict[str, float] = {}
        for (_, before), (name, after) in zip(self._marks, self._marks[1:]):
            seconds[name] = seconds.get(name, 0.0) + before.elapsed_time(after) / 1e3
        return seconds
