"""Decides which windows of a trial count: repeats disturbed ones, screens out slow trials."""

from __future__ import annotations

import dataclasses
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
class Windows:
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


def collect(
    plan: MeasurePlan,
    progress: Progress,
    take: Callable[[float, Sequence[Window]], TimedWindow | None],
    num_phases: int = 0,
    *,
    is_in_turns: bool = False,
) -> Windows:
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
    kept: list[Window] = []
    repeated = lost = tries = 0
    hopeless = is_in_turns
    phases = [0.0] * num_phases
    began = time.perf_counter()
    lengths = [plan.window_seconds] * plan.repeats
    if plan.screen_above:
        lengths.insert(0, plan.screen_seconds)
    while lengths:
        timed_window = take(lengths[0], kept)
        if timed_window is None:
            break
        window = timed_window.window
        flags = (*of_host(window, plan.quiet_canary_ms), *progress.window(window))
        late = time.perf_counter() - began > plan.cap_seconds
        tries += 1
        if flags and tries < MAX_TRIES and not hopeless and not late:
            repeated += 1
            continue
        hopeless = hopeless or bool(flags)
        tries = 0
        is_screening = len(lengths) > plan.repeats
        too_slow = not flags and window.samples < plan.screen_above * window.seconds
        del lengths[0]
        if is_screening and not too_slow:
            continue
        kept.append(dataclasses.replace(window, disturbances=flags))
        lost += timed_window.lost
        phases = [total + seconds for total, seconds in zip(phases, timed_window.phases, strict=True)]
        if is_screening or late:
            break
    return Windows(
        kept=tuple(kept),
        repeated=repeated,
        lost=lost,
        phases=tuple(phases),
        is_screened=plan.screen_above > 0 and len(lengths) == plan.repeats,
    )
