"""Times stretches of steps: warm-up until steady, then undisturbed windows."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass

from sweeper.core.job import MeasurePlan
from sweeper.core.measurement import Window
from sweeper.core.progress import Progress
from sweeper.trainer import device as devices
from sweeper.trainer.data.protocol import Loader
from sweeper.trainer.on_demand import RequestFiles
from sweeper.trainer.step.clocks import NUM_PHASES, Clock, HostClock, NoClock
from sweeper.trainer.step.group import Group
from sweeper.trainer.step.stepper import Stepper
from sweeper.trainer.timing.conditions import read_conditions, undisturbed_canary_ms, window_between
from sweeper.trainer.timing.steady import is_steady
from sweeper.trainer.timing.windows import TimedWindow, WindowSet, collect_windows

BLOCK_SECONDS = 0.1
DRAIN_SECONDS = 0.02
"""Seconds of untimed steps before a window, on batches that were queued since the last one."""
GIVE_UP_SHARE = 1 / 3
"""Share of the screening threshold below which a trial is given up while still warming up."""


@dataclass(frozen=True, slots=True)
class TimedSteps:
    """Steps that were run without a break.

    Attributes:
        seconds: Wall time, synchronised with the device at both ends.
        steps: Number of micro-batches.
        samples: Samples in them, on all devices.
    """

    seconds: float
    steps: int
    samples: int


@dataclass(frozen=True, slots=True)
class WarmUp:
    """The training before anything is timed.

    Attributes:
        steps: Number of micro-batches.
        step_seconds: Wall time per step of the last block.
        steady: False if the time was up first, or the trial is far too slow to go on.
    """

    steps: int
    step_seconds: float
    steady: bool


class StepTimer:
    """Takes stretches of steps, synchronised at the edges only."""

    def __init__(self, stepper: Stepper, loader: Loader, group: Group) -> None:
        self.stepper, self.loader, self.group = stepper, loader, group
        self._step_s = 0.0

    def stretch(
        self, clock: Clock, seconds: float, max_seconds: float, drain_steps: int = 0, max_steps: int = 0
    ) -> TimedSteps:
        """Runs whole prefetch drains for about `seconds`, but at least one step.

        Args:
            max_seconds: Time limit, which may cut a drain.
            drain_steps: Steps of a drain, of which whole multiples are run; by default the loader's.
            max_steps: Maximum number of steps, whatever the time; 0 for no limit.
        """
        stepper, loader, group = self.stepper, self.loader, self.group
        whole = drain_steps or loader.drain_steps
        devices.synchronize(stepper.device)
        began = time.perf_counter()
        steps = samples = 0
        pace = devices.Pace(stepper.device, self._step_s)
        while True:
            group.step_followers()
            samples += group.size * stepper.step(loader, clock)
            steps += 1
            pace.step()
            elapsed = time.perf_counter() - began
            if elapsed >= max_seconds or (elapsed >= seconds and steps % whole == 0) or steps == max_steps:
                break
        devices.synchronize(stepper.device)
        elapsed = time.perf_counter() - began
        self._step_s = elapsed / steps
        return TimedSteps(elapsed, steps, samples)

    def first_step(self) -> TimedSteps:
        """Takes one step, the first: it waits for the loader, the kernels and the compiler."""
        return self.stretch(NoClock(), seconds=0.0, max_seconds=0.0)

    def warm_up(self, max_seconds: float, screen_above: float = 0.0) -> WarmUp:
        """Trains in blocks until they are steady.

        A block is at least one drain of the prefetch queues, so that batches made during start-up
        are used up before anything is timed. Every shape must have been compiled or captured.

        Args:
            screen_above: A trial far below this throughput need not become steady.
        """
        began = time.perf_counter()
        blocks: list[float] = []
        total = 0
        while True:
            left = max_seconds - (time.perf_counter() - began)
            block = self.stretch(NoClock(), BLOCK_SECONDS, max_seconds=left)
            total += block.steps
            blocks.append(block.seconds / block.steps)
            if self.stepper.has_seen(self.loader.num_shapes):
                if len(blocks) > 1 and block.samples < GIVE_UP_SHARE * screen_above * block.seconds:
                    return WarmUp(total, blocks[-1], steady=False)
                if is_steady(blocks):
                    return WarmUp(total, blocks[-1], steady=True)
            if time.perf_counter() - began > max_seconds:
                return WarmUp(total, blocks[-1], steady=False)

    def take_windows(
        self, plan: MeasurePlan, global_batch: int, progress: Progress, turns: RequestFiles | None = None
    ) -> WindowSet:
        """Returns the windows of `plan` (`sweeper.trainer.timing.windows.collect_windows`).

        Args:
            turns: Requests for each window, if windows do not follow each other directly.
        """
        on_host = self.stepper.device.type == "cpu"
        canary = undisturbed_canary_ms()

        def take(seconds: float, kept: Sequence[Window]) -> TimedWindow | None:
            nonlocal canary
            if turns is not None:
                with progress.steps.paused():
                    is_wanted = turns.wait(kept)
                if not is_wanted:
                    return None
                # Starts the readings anew: the other trials' turns must not count as a disturbance.
                progress.stage("window")
            # Queues that filled up during a pause are drained again, untimed: completely after the
            # long pause between turns; otherwise a partial drain is enough.
            max_drain_seconds = DRAIN_SECONDS if turns is None else plan.window_seconds
            self.stretch(NoClock(), DRAIN_SECONDS, max_seconds=max_drain_seconds)
            clock = HostClock()
            timed_window = self.take_window(clock if on_host else NoClock(), seconds, global_batch)
            before, canary = canary, undisturbed_canary_ms()
            window = dataclasses.replace(timed_window.window, canary_ms=max(before, canary))
            return dataclasses.replace(timed_window, window=window, phases=tuple(clock.seconds))

        return collect_windows(plan, progress, take, NUM_PHASES, is_in_turns=turns is not None)

    def take_window(self, clock: Clock, seconds: float, global_batch: int, max_steps: int = 0) -> TimedWindow:
        """Returns a timed window of about `seconds`, without its phases: those are in `clock`."""
        skipped = self.stepper.skipped.clone()
        before = read_conditions()
        start = time.perf_counter()
        stretch = self.stretch(clock, seconds, max_seconds=2 * seconds, max_steps=max_steps)
        after = read_conditions()
        lost = int((self.stepper.skipped - skipped).item()) * global_batch
        samples = max(0, stretch.samples - lost)
        return TimedWindow(
            window_between(before, after, start, stretch.seconds, stretch.steps, samples), lost
        )
