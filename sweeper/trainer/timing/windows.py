"""Decides which windows of a trial count: repeats disturbed ones, screens out slow trials."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sweeper.core.contamination import of_host
from sweeper.core.job import MeasurePlan
from sweeper.core.measurement import Window
from sweeper.core.progress import Progress

MAX_TRIES = 3
"""Maximum attempts at one window while something disturbs it."""


@dataclass(frozen=True, slots=True)
class TimedWindow:
    """A measured window.

    Attributes:
        lost: Samples in steps that the scaler skipped.
        phases: Seconds by phase, if they were distinguished.
    """

    window: Window
    lost: int = 0
    phases: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSet:
    """The windows of a trial.

    Attributes:
        repeated: Number of disturbed windows that are not in `kept`.
        lost: Samples in steps of `kept` that the scaler skipped.
        phases: Seconds by phase over `kept`; zeros if the device has its own clock.
        is_screened: Whether the trial was too slow, so that `kept` is only the screening window.
    """

    kept: tuple[Window, ...]
    repeated: int
    lost: int
    phases: tuple[float, ...]
    is_screened: bool = False

    @property
    def seconds(self) -> float:
        """Seconds of all windows."""
        return sum(window.seconds for window in self.kept)

    @property
    def steps(self) -> int:
        """Micro-batches of all windows."""
        return sum(window.steps for window in self.kept)

    @property
    def samples(self) -> int:
        """Samples of all windows that count towards throughput."""
        return sum(window.samples for window in self.kept)


def collect_windows(
    plan: MeasurePlan,
    progress: Progress,
    take: Callable[[float, Sequence[Window]], TimedWindow | None],
    num_phases: int = 0,
    *,
    is_in_turns: bool = False,
) -> WindowSet:
    """Returns the windows of `plan`; a disturbed one is measured again, at most twice.

    After that it is kept with the reason, and so are later ones: a disturbance that lasts this long
    will not be over soon, and a trial never ends without a timing. If the plan has a screening
    window, it comes first, and does not count for a trial that passes.

    Args:
        take: Measures a window, given its seconds and the kept windows; returns None if training has
            ended.
        is_in_turns: Whether the process takes turns with others, which see the same disturbance: none of its
            windows is repeated.
    """
    attempts = _Attempts(plan, progress, take, disturbance_lasts=is_in_turns)
    if plan.screen_above:
        screening = attempts.take_undisturbed(plan.screen_seconds, [])
        if screening is None:
            return _window_set([], attempts.repeated, num_phases)
        if _is_too_slow(screening.window, plan.screen_above):
            return _window_set([screening], attempts.repeated, num_phases, is_screened=True)
    kept: list[TimedWindow] = []
    while len(kept) < plan.repeats and not (kept and attempts.is_late):
        timed_window = attempts.take_undisturbed(plan.window_seconds, [timed.window for timed in kept])
        if timed_window is None:
            break
        kept.append(timed_window)
    return _window_set(kept, attempts.repeated, num_phases)


class _Attempts:
    """Takes windows, a disturbed one again while that may help.

    Attributes:
        repeated: Number of disturbed windows that were taken again.
        is_late: Whether the plan's time was up after the last window.
    """

    def __init__(
        self,
        plan: MeasurePlan,
        progress: Progress,
        take: Callable[[float, Sequence[Window]], TimedWindow | None],
        *,
        disturbance_lasts: bool,
    ) -> None:
        self._plan, self._progress, self._take = plan, progress, take
        self._disturbance_lasts = disturbance_lasts
        self._began = time.perf_counter()
        self.repeated, self.is_late = 0, False

    def take_undisturbed(self, seconds: float, kept: Sequence[Window]) -> TimedWindow | None:
        """Returns a window with its disturbances, if possible without any; None if training has ended."""
        for tries in itertools.count(1):
            timed_window = self._take(seconds, kept)
            if timed_window is None:
                break
            window = timed_window.window
            flags = (*of_host(window, self._plan.quiet_canary_ms), *self._progress.window(window))
            self.is_late = time.perf_counter() - self._began > self._plan.cap_seconds
            if not flags or tries == MAX_TRIES or self._disturbance_lasts or self.is_late:
                self._disturbance_lasts = self._disturbance_lasts or bool(flags)
                return dataclasses.replace(
                    timed_window, window=dataclasses.replace(window, disturbances=flags)
                )
            self.repeated += 1
        return None


def _is_too_slow(screening: Window, screen_above: float) -> bool:
    """Returns whether a screening window rules its trial out; a disturbed one decides nothing."""
    return not screening.disturbances and screening.samples < screen_above * screening.seconds


def _window_set(
    kept: Sequence[TimedWindow], repeated: int, num_phases: int, *, is_screened: bool = False
) -> WindowSet:
    phases = [0.0] * num_phases
    for timed_window in kept:
        phases = [total + seconds for total, seconds in zip(phases, timed_window.phases, strict=True)]
    return WindowSet(
        kept=tuple(timed_window.window for timed_window in kept),
        repeated=repeated,
        lost=sum(timed_window.lost for timed_window in kept),
        phases=tuple(phases),
        is_screened=is_screened,
    )
