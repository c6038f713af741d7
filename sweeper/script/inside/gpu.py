"""Measures what a GPU does in a step, and finds the lines where the script waits for it."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .lines import line_of

if TYPE_CHECKING:
    from .lines import Line

COPIES = 3
WAITS = "called a synchronizing"
"""Text in torch's warnings about lines that wait."""


class KernelTime:
    """Measures for how long a kernel runs, with torch's profiler, which takes a second to start."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._cuda, self._device = torch.cuda, device
        profiler = torch.profiler
        if getattr(torch.autograd, "_profiler_enabled", lambda: False)():
            raise RuntimeError("the script is already being profiled")
        self._profile = profiler.profile(activities=[profiler.ProfilerActivity.CUDA])
        self._profile.start()
        self._steps, self._began_s = 0, 0.0

    def step_ended(self) -> None:
        """Counts a step that has ended."""
        if not self._steps:
            # The first kernels may be lost.
            self._cuda.synchronize(self._device)
            self._began_s = time.perf_counter()
        self._steps += 1

    def stop(self) -> float | None:
        """Returns the seconds per step; None if no kernel was seen."""
        self._cuda.synchronize(self._device)
        elapsed_s = time.perf_counter() - self._began_s
        self._profile.stop()
        spans = kernel_spans(self._profile, with_copies=False)
        if not spans or self._steps < 2:
            return None
        since = max(end for _, end in spans) - 1e6 * elapsed_s
        return union_length(spans, since) / 1e6 / (self._steps - 1)


def kernel_spans(profile: Any, *, with_copies: bool = True) -> list[tuple[float, float]]:
    """Returns start and end, in microseconds, of everything that a profile saw on the device.

    Args:
        with_copies: Whether copies from the host are included.
    """
    from torch.autograd import DeviceType  # type: ignore[attr-defined]

    return sorted(
        (event.time_range.start, event.time_range.end)
        for event in profile.events() or ()
        if event.device_type == DeviceType.CUDA
        and not getattr(event, "is_user_annotation", False)
        and (with_copies or not event.name.startswith("Memcpy HtoD"))
    )


def union_length(spans: Sequence[tuple[float, float]], since: float) -> float:
    """Returns the length of the union of sorted `spans` after `since`."""
    total, reached = 0.0, since
    for begin, end in spans:
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


class Waits:
    """Notes the lines of the user's code that wait for the GPU, until `stop` is called."""

    def __init__(self, torch: Any) -> None:
        self._cuda = torch.cuda
        self._lines: list[Line] = []
        self._pending: list[Line] = []
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()
        warnings.simplefilter("always")
        warnings.showwarning = self._note
        self._synchronize = torch.cuda.synchronize
        # torch does not warn about this call.
        torch.cuda.synchronize = self._note_synchronize
        torch.cuda.set_sync_debug_mode("warn")

    def _note_synchronize(self, *args: Any, **kwargs: Any) -> None:
        self._note(WAITS)
        self._synchronize(*args, **kwargs)

    def _note(self, message: Any, *_: Any, **__: Any) -> None:
        line = line_of(sys._getframe(1)) if WAITS in str(message) else ("", 0)
        if line[0]:
            self._pending.append(line)

    def end_phase(self, is_wait: bool) -> None:
        """Counts the lines noted since the last call if they are waits, and drops them otherwise."""
        if is_wait:
            # A line counts once for each phase, however often it waits there.
            self._lines += dict.fromkeys(self._pending)
        self._pending.clear()

    def stop(self, steps: int) -> list[Line]:
        """Stops, and returns the lines that waited in each of `steps` steps."""
        self._cuda.set_sync_debug_mode("default")
        self._cuda.synchronize = self._synchronize
        self._warnings.__exit__(None, None, None)
        return [line for line in dict.fromkeys(self._lines) if self._lines.count(line) >= steps]


def copy_seconds(torch: Any, tensors: Sequence[Any], device: Any) -> float:
    """Returns the seconds that it takes to copy tensors to a GPU; a device of None is torch's current one."""
    seconds = []
    for _ in range(COPIES):
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        on_device = [tensor.to(device or "cuda") for tensor in tensors]
        torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
        del on_device
    return min(seconds)
