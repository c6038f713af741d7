"""Times stretches of steps: warm-up until steady, then undisturbed windows."""

from __future__ import annotations

import dataclasses
import time

from sweeper.core.job import MeasurePlan
from sweeper.core.measurement import Window
from sweeper.core.progress import Progress
from sweeper.trainer import device as devices
from sweeper.trainer.clocks import NUM_PHASES, Clock, HostClock, NoClock
from sweeper.trainer.conditions import between, read_conditions, undisturbed_canary_ms
from sweeper.trainer.data.protocol import Loader
from sweeper.trainer.group import Group
from sweeper.trainer.on_demand import Turns
from sweeper.trainer.steady import is_steady
from sweeper.trainer.step import Stepper
from sweeper.trainer.windows import Taken, Windows, collect

BLOCK_SECONDS = 0.1
DRAIN_SECONDS = 0.02
HOPELESS = 1 / 3
"""Share of the screening threshold below which a trial is given up while still warming up."""


class Timing:
    """Takes stretches of steps, synchronised at the edges only."""

    def __init__(self, stepper: Stepper, loader: Loader, group: Group) -> None:
        self.stepper, self.loader, self.group = stepper, loader, group
        self._step_s = 0.0

    def stretch(
        self, clock: Clock, seconds: float, cap_seconds: float, drain_steps: int = 0, most_steps: int = 0
    ) -> tuple[float, int, int]:
        """Runs whole prefetch drains for about `seconds`; returns wall seconds, steps and samples.

        Args:
            cap_seconds: Time limit, which may cut a drain.
            drain_steps: Steps to run whole multiples of; the loader's own by default.
            most_steps: Maximum number of steps, whatever the time; 0 for no limit.
        """
        stepper, loader, group = self.stepper, self.loader, self.group
        whole = drain_steps or loader.drain_steps
        devices.synchronize(stepper.device)
        began = time.perf_counter()
        steps = samples = 0
        pace = devices.Pace(stepper.device, self._step_s)
        while True:
            group.lead()
            samples += group.size * stepper.step(loader, clock)
            steps += 1
            pace.step()
            elapsed = time.perf_counter() - began
            if elapsed >= cap_seconds or (elapsed >= seconds and steps % whole == 0) or steps == most_steps:
                break
        devices.synchronize(stepper.device)
        elapsed = time.perf_counter() - began
        self._step_s = elapsed / steps
        return elapsed, steps, samples

    def warm_up(self, cap_seconds: float, screen_above: float = 0.0) -> tuple[int, float, bool]:
        """Trains in blocks until they are steady; returns steps, seconds per step, and if steady.

        Args:
            screen_above: A trial far below this throughput need not become steady.

        A block is at least one drain of the prefetch queues, so that batches made during start-up
        are used up before anything is timed. Every shape must have been compiled or captured.
        """
        began = time.perf_counter()
        blocks: list[float] = []
        total = 0
        while True:
            left = cap_seconds - (time.perf_counter() - began)
            seconds, steps, samples = self.stretch(NoClock(), BLOCK_SECONDS, left)
            total += steps
            blocks.append(seconds / steps)
            if self.stepper.has_seen(self.loader.num_shapes):
                if len(blocks) > 1 and samples < HOPELESS * screen_above * seconds:
                    return total, blocks[-1], False
                if is_steady(blocks):
                    return total, blocks[-1], True
            if time.perf_counter() - began > cap_seconds:
                return total, blocks[-1], False

    def windows(
        self, plan: MeasurePlan, global_batch: int, progress: Progress, turns: Turns | None = None
    ) -> Windows:
        """Returns the windows of `plan` (`sweeper.trainer.windows.collect`).

        Args:
            turns: Requests for each window, if windows do not follow each other directly.
        """
        on_host = self.stepper.device.type == "cpu"
        canary = undisturbed_canary_ms()

        def take(seconds: float, num_kept: int) -> Taken:
            nonlocal canary
            if turns is not None:
                with progress.steps.paused():
                    turns.wait(num_kept)
            # Drain queues that filled up during a pause again, untimed: completely, if it was long.
            self.stretch(NoClock(), DRAIN_SECONDS, DRAIN_SECONDS if turns is None else plan.window_seconds)
            clock = HostClock()
            window, skipped = self.window(clock if on_host else NoClock(), seconds, global_batch)
            before, canary = canary, undisturbed_canary_ms()
            window = dataclasses.replace(window, canary_ms=max(before, canary))
            return Taken(window, skipped, tuple(clock.seconds))

        return collect(plan, progress, take, NUM_PHASES)

    def window(
        self, clock: Clock, seconds: float, global_batch: int, most_steps: int = 0
    ) -> tuple[Window, int]:
        """Returns a timed window, and the samples in it whose steps the scaler skipped."""
        skipped = self.stepper.skipped.clone()
        before = read_conditions()
        start = time.perf_counter()
        elapsed, steps, samples = self.stretch(clock, seconds, 2 * seconds, most_steps=most_steps)
        after = read_conditions()
        lost = int((self.stepper.skipped - skipped).item()) * global_batch
        return between(before, after, start, elapsed, steps, max(0, samples - lost)), lost
