"""Defines the meter: three lines in a training script that report its speed to a sweep.

    import sweeper
    meter = sweeper.meter()
    for batch in loader:
        ...
        meter.step(samples=len(batch), loss=loss)

Outside a sweep it does nothing. A step never waits for a GPU: a loss on one is copied in the
background and read once the copy is done. Standard library only, and Python 3.8, because the hook in a
script's own process uses this module.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

METER_VARIABLE = "SWEEPER_METER"
"""Environment variable with the abstract name of the socket that receives the meter's messages."""

INTERVAL_SECONDS = 0.01
MAX_BYTES = 1 << 16


def meter() -> Meter:
    """Returns the meter of this process, the same each time; outside a sweep it does nothing.

    If several processes train together (torchrun), the first reports for all.
    """
    name = os.environ.get(METER_VARIABLE, "")
    if not name or os.environ.get("RANK", "0") not in ("", "0"):
        return Meter()
    return _reporting_meter(name, int(os.environ.get("WORLD_SIZE") or 1))


class Meter:
    """A meter outside a sweep, which does nothing."""

    def step(self, samples: int, loss: Any = None) -> None:
        """Reports a finished training step.

        Args:
            samples: Training samples in the step, in this process.
            loss: The step's loss: a number or a tensor.
        """

    def evaluated(self, loss: Any) -> None:
        """Reports the validation loss; the time since the last step does not count as training."""

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Leaves the time spent inside (evaluation, a checkpoint) out of the speed."""
        yield


class Channel:
    """Sends messages to the sweep's socket; never waits, never fails.

    Each message has the totals since the beginning, so that a lost one costs nothing.
    """

    def __init__(self, name: str) -> None:
        self._address = b"\0" + name.encode()
        self._open()

    def _open(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._inode = os.fstat(self._socket.fileno()).st_ino

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends a message; it is lost if the listener is busy or gone."""
        with contextlib.suppress(OSError):
            if not self._is_ours():
                self._socket.detach()
                self._open()
            self._socket.sendto(json.dumps(message).encode(), self._address)

    def _is_ours(self) -> bool:
        """Returns whether the descriptor is still the socket's; a script may have closed it."""
        try:
            return os.fstat(self._socket.fileno()).st_ino == self._inode
        except OSError:
            return False


class _ReportingMeter(Meter):
    """A meter in a sweep."""

    def __init__(self, name: str, world_size: int) -> None:
        self._channel = Channel(name)
        self._world_size = world_size
        self._steps = self._samples = 0
        self._paused, self._is_pausing = 0.0, False
        self._sent_at = 0.0
        self._last_step = time.perf_counter()
        self._losses = Losses()
        self._val: tuple[int, float] | None = None
        self._send(self._last_step)

    def step(self, samples: int, loss: Any = None) -> None:
        now = self._last_step = time.perf_counter()
        self._steps += 1
        # int(): JSON does not take numpy's integers.
        self._samples += int(samples) * self._world_size
        if loss is not None:
            self._losses.add(loss)
        if now - self._sent_at >= INTERVAL_SECONDS or self._steps == 1:
            self._send(now)

    def evaluated(self, loss: Any) -> None:
        # A step within the interval after the last message has not been sent yet.
        self._send(self._last_step)
        self._val = self._samples, _number(loss)
        now = time.perf_counter()
        if not self._is_pausing:
            self._paused += now - self._last_step
            self._last_step = now
        self._send(now)

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        if self._is_pausing:
            # The outer pause includes its time.
            yield
            return
        began = time.perf_counter()
        self._is_pausing = True
        self._send(self._last_step)
        try:
            yield
        finally:
            self._is_pausing = False
            now = self._last_step = time.perf_counter()
            self._paused += now - began
            self._send(now)

    def _send(self, moment: float) -> None:
        self._sent_at = moment
        message: dict[str, Any] = {
            "t": moment,
            "steps": self._steps,
            "samples": self._samples,
            "paused": self._paused,
            "pausing": self._is_pausing,
        }
        loss = self._losses.pop_mean()
        if loss is not None:
            message["loss"] = finite_or_none(loss)
        if self._val is not None:
            samples, value = self._val
            message["val"] = [samples, finite_or_none(value)]
        self._channel.send(message)


@functools.lru_cache(maxsize=None)
def _reporting_meter(name: str, world_size: int) -> _ReportingMeter:
    return _ReportingMeter(name, world_size)


class Losses:
    """Collects the losses since the last message; one on a GPU counts once its copy has arrived."""

    MAX_PENDING = 64

    def __init__(self) -> None:
        self._sum, self._count = 0.0, 0
        self._pending: list[tuple[Any, Any]] = []

    def add(self, loss: Any) -> None:
        """Adds a number or a tensor; never waits for a GPU."""
        if getattr(loss, "is_cuda", False):
            if len(self._pending) < self.MAX_PENDING:
                self._copy(loss)
            return
        self.add_number(_number(loss))

    def _copy(self, loss: Any) -> None:
        torch = sys.modules["torch"]
        there = torch.empty(loss.shape, dtype=torch.float32, device="cpu", pin_memory=True)
        there.copy_(loss.detach(), non_blocking=True)
        arrived = torch.cuda.Event()
        # The copy runs on the stream of the loss's device, which may not be the current one.
        arrived.record(torch.cuda.current_stream(loss.device))
        self._pending.append((there, arrived))

    def add_number(self, value: float, count: int = 1) -> None:
        """Adds a number, or the sum of several."""
        self._sum += value
        self._count += count

    def pop_mean(self) -> float | None:
        """Returns the mean of the losses that have arrived and starts again; None if there are none."""
        while self._pending and self._pending[0][1].query():
            self.add_number(float(self._pending.pop(0)[0]))
        if not self._count:
            return None
        mean = self._sum / self._count
        self._sum, self._count = 0.0, 0
        return mean


def finite_or_none(value: float) -> float | None:
    """Returns `value` as JSON can hold it: None if it is not finite."""
    return value if math.isfinite(value) else None


def _number(loss: Any) -> float:
    return float(loss.detach() if hasattr(loss, "detach") else loss)
