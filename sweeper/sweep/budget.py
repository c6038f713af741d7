"""Tracks the seconds that a sweep has left."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Iterable

NUM_RECENT = 100
"""Number of recent trials whose median duration counts as usual."""
LATE_SECONDS = 2.0
"""Seconds that a hurried sweep may run beyond its end."""
MIN_TIMEOUT_SECONDS = 30.0


class Budget:
    """The time of one sweep, confirmation included."""

    def __init__(self, minutes: float | None, began: float) -> None:
        """Starts with nothing spent.

        Args:
            minutes: The total; None for no limit.
            began: Time at which this process began to spend time, by the monotonic clock.
        """
        self._minutes, self._began = minutes, began
        self._used = 0.0
        self._ends_at: float | None = None
        self._recent = deque[float](maxlen=NUM_RECENT)

    def charge(self, seconds: float) -> None:
        """Subtracts what earlier processes of the sweep have spent."""
        self._used += seconds

    def add_trial(self, seconds: float) -> None:
        """Records how long a trial took."""
        self._recent.append(seconds)

    @staticmethod
    def clock() -> float:
        """Returns the time in seconds by the clock that the sweep's time is taken by."""
        return time.monotonic()

    @property
    def seconds_left(self) -> float | None:
        """The seconds left; None without a limit."""
        now = time.monotonic()
        left = None if self._minutes is None else self._minutes * 60 - self._used - (now - self._began)
        if self._ends_at is None:
            return left
        return min(self._ends_at - now, left if left is not None else self._ends_at)

    @property
    def usual_seconds(self) -> float:
        """The median duration of the most recent trials; 0 if there are none."""
        return statistics.median(self._recent or [0.0])

    @property
    def is_over(self) -> bool:
        """Whether a hurried sweep is late: running jobs end by themselves, waiting ones do not."""
        return self._ends_at is not None and time.monotonic() > self._ends_at + LATE_SECONDS

    def hurry(self, seconds: float) -> None:
        """Leaves no more than `seconds` from now on."""
        self._ends_at = time.monotonic() + seconds

    def timeout(self, limit: float) -> float:
        """Returns the seconds a job may take: `limit`, or about the time left if that is less."""
        left = self.seconds_left
        min_seconds = MIN_TIMEOUT_SECONDS if self._ends_at is None else 1.0
        return limit if left is None else min(limit, max(min_seconds, left))


def union_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """Returns the seconds during which any trial ran; the time of concurrent trials counts once.

    Args:
        spans: Wall-clock starts and durations in seconds, in order of their start. If one starts
            before the previous one, the clock was set back, and overlaps are unknown.
    """
    total, last, until = 0.0, -math.inf, -math.inf
    for begin, seconds in spans:
        until = -math.inf if begin < last else until
        total += max(0.0, begin + seconds - max(begin, until))
        last, until = begin, max(until, begin + seconds)
    return total
