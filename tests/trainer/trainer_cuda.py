"""A make-believe GPU in place of torch.cuda's calls, with a clock of its own for it and for the host."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sweeper.core.measurement import DeviceInfo
from sweeper.trainer import device as devices
from sweeper.trainer.timing import gpu_time

CUDA = SimpleNamespace(type="cuda", index=0)
CYCLES_PER_SECOND = 2e9


class FakeCuda:
    """A device that works through what was launched, one after the other.

    Attributes:
        now: The host's time; `free`: when the device will have done all that was asked of it.
        steps: How often `train` was called; `waits`: how often the host waited for the device.
        held: Seconds for which the device was held up.
        queue_seconds: The work that fits into the queue of launches; beyond it, the host waits.
        mode: For what torch warns of.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, host: float, device: float) -> None:
        self.host, self.device_seconds = host, device
        self.now = self.free = 5.0
        self.steps = self.waits = 0
        self.held = 0.0
        self.queue_seconds = float("inf")
        self.mode = "default"
        cuda = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                self.at = 0.0

            def record(self) -> None:
                self.at = max(cuda.free, cuda.now)

            def query(self) -> bool:
                return cuda.now >= self.at

            def elapsed_time(self, other: Event) -> float:
                return 1e3 * (other.at - self.at)

            def synchronize(self) -> None:
                cuda.now = max(cuda.now, self.at)

        def waiting(device: object = None) -> None:
            self.waits += 1
            self.wait()

        self.clock = SimpleNamespace(perf_counter=lambda: self.now)
        monkeypatch.setattr(gpu_time, "time", self.clock)
        for name, value in {
            "Event": Event,
            "_sleep": self.hold,
            "synchronize": waiting,
            "memory_reserved": lambda device=None: 0,
            "mem_get_info": lambda device=None: (30 * 2**30, 40 * 2**30),
            "set_sync_debug_mode": lambda mode: setattr(self, "mode", mode),
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        info = DeviceInfo(kind="cuda", name="NVIDIA A10", uuid="GPU-1", capability="8.6")
        monkeypatch.setattr(devices, "describe", lambda device: info)

    def hold(self, cycles: int) -> None:
        self.held = cycles / CYCLES_PER_SECOND
        self.launch(0.0, self.held)

    def launch(self, host: float, device: float) -> None:
        self.now += host
        self.free = max(self.free, self.now) + device
        self.now = max(self.now, self.free - self.queue_seconds)

    def wait(self) -> None:
        self.now = max(self.now, self.free)

    def train(self, *_: Any) -> None:
        """A step: the host launches it, and the device has to work."""
        self.steps += 1
        self.launch(self.host, self.device_seconds)
