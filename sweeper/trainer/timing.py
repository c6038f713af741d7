"""Steps in timed stretches: warm-up until they are steady, and windows which nothing else disturbed."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

from sweeper.core.contamination import of_host
from sweeper.core.job import MeasurePlan
from sweeper.core.measurement import Window
from sweeper.core.progress import Progress
from sweeper.trainer import device as devices
from sweeper.trainer.clocks import NUM_PHASES, Clock, HostClock, NoClock
from sweeper.trainer.conditions import read_conditions, undisturbed_canary_ms
from sweeper.trainer.data.loader import Loader
from sweeper.trainer.group import Group
from sweeper.trainer.steady import is_steady
from sweeper.trainer.step import Stepper
from sweeper.trainer.turns import Turns

BLOCK_SECONDS = 0.1
SETTLE_SECONDS = 0.02
MAX_TRIES = 3
"""Of one window, where something disturbs it."""
HOPELESS = 1 / 3
"""Share of the screening's bar below which even a trial that still warms up is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """The windows of a trial.

    Attributes:
        repeated: How many were disturbed, and are not among `kept`.
        lost: Samples in steps of `kept` that the scaler skipped.
        phases: Seconds by phase over `kept`; zeros where the device has a clock of its own.
        screened_out: `kept` is the screening window alone: it was too slow.
    """

    kept: tuple[Window, ...]
    repeated: int
    lost: int
    phases: tuple[float, ...]
    screened_out: bool = False

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
        """Samples of all windows that earned throughput."""
        return sum(window.samples for window in self.kept)


class Timing:
    """Takes steps for a while, synchronised at the edges only."""

    def __init__(self, stepper: Stepper, loader: Loader, group: Group) -> None:
        self.stepper, self.loader, self.group = stepper, loader, group
        self._step_s = 0.0

    def stretch(
        self, clock: Clock, seconds: float, cap_seconds: float, drain_steps: int = 0
    ) -> tuple[float, int, int]:
        """Runs whole prefetch drains for about `seconds`; returns wall seconds, steps and samples.

        Args:
            cap_seconds: A drain that does not fit into it is cut.
            drain_steps: Steps to run whole multiples of; the loader's own by default.
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
            if elapsed >= cap_seconds or (elapsed >= seconds and steps % whole == 0):
                break
        devices.synchronize(stepper.device)
        elapsed = time.perf_counter() - began
        self._step_s = elapsed / steps
        return elapsed, steps, samples

    def warm_up(self, cap_seconds: float, screen_above: float = 0.0) -> tuple[int, float, bool]:
        """Trains in blocks until they are steady; returns steps, seconds a step, and whether so.

        Args:
            screen_above: A trial which is far from this throughput need not become steady.

        A block is at least one drain of the prefetch queues, so that batches made during start-up are
        spent before anything is timed. Each shape that is compiled or captured must have come by.
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
        """Returns the windows of `plan`; one that was disturbed is measured again, at most twice.

        After that it stands as it is, with the reason, and so do the others: what goes on for so long
        will not be over soon, and nothing is ever left without a timing. A screening comes first where
        the plan has one; a trial that passes it is timed without it.

        Args:
            turns: Where each window is asked for, if they do not follow each other.
        """
        kept: list[Window] = []
        repeated = lost = tries = 0
        hopeless = False
        phases = [0.0] * NUM_PHASES
        on_host = self.stepper.device.type == "cpu"
        began = time.perf_counter()
        canary = undisturbed_canary_ms()
        lengths = [plan.window_seconds] * plan.repeats
        if plan.screen_above:
            lengths.insert(0, plan.screen_seconds)
        while lengths:
            if turns is not None:
                turns.wait(len(kept))
            # Queues which filled up during a pause are drained again, untimed: whole, where it was long.
            self.stretch(NoClock(), SETTLE_SECONDS, SETTLE_SECONDS if turns is None else plan.window_seconds)
            clock = HostClock()
            window, skipped = self._window(clock if on_host else NoClock(), lengths[0], global_batch)
            before, canary = canary, undisturbed_canary_ms()
            window = dataclasses.replace(window, canary_ms=max(before, canary))
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
            kept.append(dataclasses.replace(window, flags=flags))
            lost += skipped
            phases = [total + seconds for total, seconds in zip(phases, clock.seconds, strict=True)]
            if is_screening or late:
                break
        return Windows(
            kept=tuple(kept),
            repeated=repeated,
            lost=lost,
            phases=tuple(phases),
            screened_out=plan.screen_above > 0 and len(lengths) == plan.repeats,
        )

    def _window(self, clock: Clock, seconds: float, global_batch: int) -> tuple[Window, int]:
        """Returns a timed window, and the samples of steps in it that the scaler skipped."""
        skipped = self.stepper.skipped.clone()
        before = read_conditions()
        start = time.perf_counter()
        elapsed, steps, samples = self.stretch(clock, seconds, 2 * seconds)
        after = read_conditions()
        lost = int((self.stepper.skipped - skipped).item()) * global_batch
        own = after.cpu_seconds - before.cpu_seconds
        window = Window(
            start_s=start,
            seconds=elapsed,
            steps=steps,
            samples=max(0, samples - lost),
            cpu_seconds=own,
            helper_cpu_seconds=max(0.0, after.helper_cpu_seconds - before.helper_cpu_seconds),
            # A thread that ends takes its counts with it.
            waited_seconds=_since(before.waited_seconds, after.waited_seconds),
            others_cpu_seconds=max(0.0, after.busy_seconds - before.busy_seconds - own),
            involuntary_switches=max(0, after.involuntary_switches - before.involuntary_switches),
            steal_seconds=after.steal_seconds - before.steal_seconds,
            pressure_seconds=_since(before.pressure_seconds, after.pressure_seconds),
            minor_faults=after.minor_faults - before.minor_faults,
            load=after.load,
        )
        return window, lost


def _since(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else max(0.0, after - before)
