"""Times a step on a GPU: the device, the host's launches, and where the host waits."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from sweeper.core.modules import is_sweepers
from sweeper.script.inside.gpu import kernel_spans, union_length

_UPDATES = 4
_HOLD_SECONDS = (0.1, 2.0)
_CYCLES_PER_SECOND = 2e9
"""Assumed clock. No data-centre chip has a faster one, so a hold is never shorter than intended."""

_PROFILED_UPDATES = _SYNC_STEPS = 3
_TORCH = str(Path(torch.__file__).parent) + os.sep


def _files_of_warnings() -> frozenset[str | None]:
    # From Python 3.14 on, `warnings` is implemented in `_py_warnings`.
    names = ("warnings", "_py_warnings")
    return frozenset(sys.modules[name].__file__ for name in names if name in sys.modules)


_WARNINGS = _files_of_warnings()


def queued_seconds(
    step: Callable[[], None], device: torch.device, steps_per_update: int, alone: float
) -> tuple[float | None, float | None]:
    """Returns the device's and the host's seconds per step, each without waiting for the other.

    The device is blocked while the host launches; it then works through the steps without a gap.
    Launches after the end of the block do not count: a host that waits (for the device, or because
    a thousand launches fill the queue) only continues after the block. (None, None) if none are left.

    Args:
        steps_per_update: Steps from one optimizer step to the next.
        alone: Seconds of a step.
    """
    shortest, longest = _HOLD_SECONDS
    seconds = min(longest, max(shortest, 1.5 * steps_per_update * alone))
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(_UPDATES + 1)]
    torch.cuda.synchronize(device)
    torch.cuda._sleep(int(_CYCLES_PER_SECOND * seconds))
    marks[0].record()
    moments = [time.perf_counter()]
    for mark in marks[1:]:
        for _ in range(steps_per_update):
            step()
        mark.record()
        now = time.perf_counter()
        if marks[0].query():
            break
        moments.append(now)
    torch.cuda.synchronize(device)
    updates = len(moments) - 1
    if not updates:
        return None, None
    busy = marks[0].elapsed_time(marks[updates]) / 1e3
    return busy / updates / steps_per_update, (moments[-1] - moments[0]) / updates / steps_per_update


def kernel_seconds(step: Callable[[], None], device: torch.device, steps_per_update: int = 1) -> float | None:
    """Returns a step's seconds with a running kernel, from the profiler; None if it saw none.

    For steps that `queued_seconds` cannot time. The profiler takes a second to start.

    Args:
        steps_per_update: Steps from one optimizer step to the next.
    """
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        # The first kernels may be lost.
        step()
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        for _ in range(_PROFILED_UPDATES * steps_per_update):
            step()
        torch.cuda.synchronize(device)
        elapsed = time.perf_counter() - began
    spans = kernel_spans(profiler)
    if not spans:
        return None
    first = max(end for _, end in spans) - 1e6 * elapsed
    return union_length(spans, first) / 1e6 / _PROFILED_UPDATES / steps_per_update


def sync_places(step: Callable[[], Any]) -> tuple[str, ...]:
    """Returns the lines of the user's code at which a step waits for the device."""
    places: list[str] = []

    def note(message: Warning | str, *_: object, **__: object) -> None:
        place = _users_line() if "synchronizing" in str(message) else ""
        if place:
            places.append(place)

    real = torch.cuda.synchronize

    def synchronize(*args: Any, **kwargs: Any) -> None:
        note("synchronizing")  # Torch does not warn about this.
        real(*args, **kwargs)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.synchronize = synchronize
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for _ in range(_SYNC_STEPS):
                step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
            torch.cuda.synchronize = real
    return tuple(place for place in dict.fromkeys(places) if places.count(place) >= _SYNC_STEPS)


def _users_line() -> str:
    """Returns the innermost line on the stack that is not torch's; empty if it is sweeper's."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if is_sweepers(name) and name != __file__:
            return ""
        if name != __file__ and name not in _WARNINGS and not name.startswith(_TORCH):
            return f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
