"""The meter: three lines in a training script that report its speed to a sweep.

    import sweeper
    meter = sweeper.meter()
    for batch in loader:
        ...
        meter.step(samples=len(batch), loss=loss)

Standard library alone. Outside of a sweep it does nothing. It never waits for a GPU: a loss that lies
there is copied in the background and read once the copy is done.
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
from collections.abc import Iterator
from typing import Any

VARIABLE = "SWEEPER_METER"
"""In a script's environment: the abstract name of the socket that takes what it tells."""

INTERVAL_SECONDS = 0.01
MAX_BYTES = 4096


def meter() -> Meter:
    """Returns the meter of this process, the same each time; one that does nothing outside of a sweep.

    Of several processes that train together (torchrun), the first speaks for all.
    """
    name = os.environ.get(VARIABLE, "")
    if not name or os.environ.get("RANK", "0") not in ("", "0"):
        return Meter()
    return _telling(name, int(os.environ.get("WORLD_SIZE") or 1))


class Meter:
    """A meter that nobody listens to."""

    def step(self, samples: int, loss: Any = None) -> None:
        """Says that a training step is done.

        Args:
            samples: Training samples in it, on this process.
            loss: Its loss: a number, or a tensor.
        """

    def evaluated(self, loss: Any) -> None:
        """Says what the validation loss is now; the time since the last step was not training."""

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Leaves what is done inside (evaluation, a checkpoint) out of the speed."""
        yield


class _Telling(Meter):
    """A meter in a sweep.

    Every message says all there is since the beginning, so that one which is lost costs nothing.
    """

    def __init__(self, name: str, world_size: int) -> None:
        self._address = b"\0" + name.encode()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._world_size = world_size
        self._steps = self._samples = 0
        self._paused, self._is_pausing = 0.0, False
        self._sent_at = 0.0
        self._last_step = time.perf_counter()
        self._losses = _Losses()
        self._val: tuple[int, float] | None = None
        self._send(self._last_step)

    def step(self, samples: int, loss: Any = None) -> None:
        now = self._last_step = time.perf_counter()
        self._steps += 1
        # int(): numpy counts in types of its own, which JSON does not take.
        self._samples += int(samples) * self._world_size
        if loss is not None:
            self._losses.add(loss)
        if now - self._sent_at >= INTERVAL_SECONDS or self._steps == 1:
            self._send(now)

    def evaluated(self, loss: Any) -> None:
        # A step that comes within the interval after the last message has not been told yet.
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
            # The pause around this one has its time in it.
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
        loss = self._losses.taken()
        if loss is not None:
            # NaN is not JSON; that it was no number is all there is to say.
            message["loss"] = loss if math.isfinite(loss) else None
        if self._val is not None:
            samples, value = self._val
            message["val"] = [samples, value if math.isfinite(value) else None]
        # The listener is busy, or has gone: training goes on.
        with contextlib.suppress(OSError):
            self._socket.sendto(json.dumps(message).encode(), self._address)


@functools.cache
def _telling(name: str, world_size: int) -> _Telling:
    return _Telling(name, world_size)


class _Losses:
    """Losses since the last message; those on a GPU once their copies have arrived."""

    MOST = 64

    def __init__(self) -> None:
        self._sum, self._count = 0.0, 0
        self._coming: list[tuple[Any, Any]] = []

    def add(self, loss: Any) -> None:
        if getattr(loss, "is_cuda", False):
            if len(self._coming) < self.MOST:
                self._copy(loss)
            return
        self._take(_number(loss))

    def _copy(self, loss: Any) -> None:
        torch = sys.modules["torch"]
        there = torch.empty(loss.shape, dtype=torch.float32, pin_memory=True)
        there.copy_(loss.detach(), non_blocking=True)
        arrived = torch.cuda.Event()
        # The copy runs on the stream of the device the loss lies on, which need not be the current one.
        arrived.record(torch.cuda.current_stream(loss.device))
        self._coming.append((there, arrived))

    def _take(self, value: float) -> None:
        self._sum += value
        self._count += 1

    def taken(self) -> float | None:
        """Returns the mean of what has arrived, and begins anew; None where nothing has."""
        while self._coming and self._coming[0][1].query():
            self._take(float(self._coming.pop(0)[0]))
        if not self._count:
            return None
        mean = self._sum / self._count
        self._sum, self._count = 0.0, 0
        return mean


def _number(loss: Any) -> float:
    return float(loss.detach() if hasattr(loss, "detach") else loss)
