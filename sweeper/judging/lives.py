"""Runs the processes of a race: scripts that take turns, one runs while the others are stopped.

The speed of a host changes within seconds: two consecutive runs of one script differ by a tenth. Turns of a
second share the host's speed, and each process starts only once.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from sweeper.core.job import MeasurePlan
from sweeper.core.measurement import Measurement, Window
from sweeper.core.progress import SilentProgress, TrialFailedError
from sweeper.core.units import GIB
from sweeper.judging.arms import Arm
from sweeper.race.log import Verified
from sweeper.race.policy import Start
from sweeper.race.race import Taken
from sweeper.script.run.failure import is_for_want_of_room
from sweeper.script.run.watch import watch
from sweeper.system.process import open_files, tree, usage
from sweeper.telemetry.room import gpu_memory_gib, has_room
from sweeper.trainer.on_demand import turn_of

Measure = Callable[["TurnRequests", float], Measurement]
"""Function that measures an arm in turns of so many seconds."""

CUDA = "/dev/nvidia-uvm"
"""A process that uses CUDA has this open, and one that only asks NVML has not."""
UNLIMITED = 1000
WARMUP_SECONDS = 2.0
"""Longest warm-up of a process, in seconds."""


class CrowdedError(TrialFailedError):
    """Raised if a version may have failed because the other one was there."""


class TurnRequests(SilentProgress):
    """Requests for the turns of one process, and the windows that it has measured in them."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()
        self._num_windows, self._num_requested, self._is_over, self._is_killed = -1, 0, False, False
        self._pid = 0
        self._last: Window | None = None

    # -- the process's side

    @property
    def may_be_examined(self) -> bool:
        """Whether there is time to examine the training after its windows."""
        return True

    @property
    def is_withdrawn(self) -> bool:
        """Whether the window that was requested is not wanted any more."""
        return self.is_over

    def started(self, pid: int) -> None:
        """Records the process ID of its script, which has started."""
        self._pid = pid
        if self._is_killed:
            self.kill()

    def wait(self, windows: Sequence[Window]) -> bool:
        """Reports the windows taken; returns True once another is requested, or False at the end."""
        with self._changed:
            self._num_windows = len(windows)
            self._last = windows[-1] if windows else None
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._num_requested > self._num_windows or self._is_over)
            return self._num_requested > self._num_windows

    # -- the race's side

    def end(self) -> None:
        """Records that the process has been measured, or has failed."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    @property
    def is_over(self) -> bool:
        """Whether it has been measured, or has failed: a training may be shorter than its turns."""
        with self._changed:
            return self._is_over

    def await_start(self) -> None:
        """Waits until the process is ready for its first turn, or has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._num_windows >= 0 or self._is_over)

    def ask(self) -> Window | None:
        """Requests a turn; returns its window once it is taken, or None if the process has ended."""
        with self._changed:
            self._num_requested += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._num_windows >= self._num_requested or self._is_over)
            return self._last if self._num_windows >= self._num_requested else None

    def kill(self) -> None:
        """Kills its script, also if it is about to start, and ends its turns."""
        self._is_killed = True
        self.end()
        if self._pid:
            # A launcher's workers are in separate sessions, and stopped ones would stay forever.
            for pid in list(tree(self._pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)

    def memory_bytes(self) -> int:
        """Returns the resident memory of its processes, in bytes."""
        return sum(used.resident_bytes for pid in tree(self._pid) if (used := usage(pid)) is not None)

    def has_open(self, path: str) -> bool:
        """Returns whether one of its processes has a file open."""
        return any(path in open_files(pid) for pid in tree(self._pid))


class ScriptLives:
    """The processes of a race. One thread measures one process.

    Attributes:
        measured: What each process measured, by its number, once it has ended.
    """

    def __init__(self, measures: Sequence[Measure], *, is_alone: bool = False) -> None:
        """Starts nothing yet.

        Args:
            measures: Functions that measure a new process of each arm.
            is_alone: Whether one process follows the other, whatever room there is.
        """
        self._is_alone = is_alone
        self._measures = measures
        self._turns: dict[int, TurnRequests] = {}
        self._running: dict[int, Future[Measurement]] = {}
        self._num_returned: dict[int, int] = {}
        self._pool = ThreadPoolExecutor()
        self._before: Mapping[str, float] = {}
        self.measured: dict[int, Measurement] = {}

    @classmethod
    def of(cls, arms: Sequence[Arm], *, is_alone: bool = False) -> Self:
        """Returns the processes of scripts.

        Args:
            is_alone: Whether one process follows the other, whatever room there is.
        """
        return cls([_measure(arm) for arm in arms], is_alone=is_alone)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Waits until the threads have ended."""
        self._pool.shutdown()

    def start(self, life: int, start: Start) -> Sequence[Verified]:
        """Starts a process; returns once it is warm and stopped, or has ended by itself.

        Raises:
            CrowdedError: It cannot be measured, maybe because another one is there.
            TrialFailedError: It cannot be measured.
            UserError: It cannot be started.
        """
        if not self._turns:
            self._before = gpu_memory_gib()
        turns = self._turns[life] = TurnRequests()

        def run() -> Measurement:
            try:
                return self._measures[start.arm](turns, start.turn_seconds)
            finally:
                turns.end()

        self._running[life] = self._pool.submit(run)
        self._num_returned[life] = 0
        turns.await_start()
        if turns.is_over:
            # It has failed, or its training is short.
            try:
                self._running[life].result()
            except TrialFailedError as error:
                if len(self._running) > 1 and is_for_want_of_room(error.kind, str(error)):
                    raise CrowdedError(error.kind, str(error)) from error
                raise
        return ()

    def has_company(self) -> bool:
        """Returns whether host and GPUs have memory for another process of the same size.

        A process waits for its GPU before it is stopped (`script.inside.step_request`), so that none of its
        work is left in a queue.
        """
        if self._is_alone:
            return False
        (turns,) = self._turns.values()
        now = gpu_memory_gib()
        if not now and turns.has_open(CUDA):
            return False
        gpu_gib = {uuid: used - self._before.get(uuid, 0.0) for uuid, used in now.items()}
        return has_room(1, turns.memory_bytes() / GIB, gpu_gib, now)

    def turn(self, life: int) -> Taken | None:
        """Lets a process take a turn; returns None if it has ended."""
        window = self._turns[life].ask()
        if window is None:
            return None
        self._num_returned[life] += 1
        return turn_of(window)

    def end(self, life: int) -> list[Taken]:
        """Ends a process; returns the windows of a training that was shorter than its turns.

        Raises:
            TrialFailedError: It could not be measured.
        """
        self._turns[life].end()
        measurement = self.measured[life] = self._running[life].result()
        del self._running[life], self._turns[life]
        return [turn_of(window) for window in measurement.windows[self._num_returned[life] :]]

    def is_crowded_out(self, life: int) -> bool:
        """Returns False: a version that fails ends the race."""
        return False

    def kill(self) -> None:
        """Kills all processes."""
        for turns in self._turns.values():
            turns.kill()


def _measure(arm: Arm) -> Measure:
    def measure(turns: TurnRequests, seconds: float) -> Measurement:
        plan = MeasurePlan(
            window_seconds=seconds,
            repeats=UNLIMITED,
            warmup_cap_seconds=WARMUP_SECONDS,
            cap_seconds=math.inf,
            diagnose=False,
        )
        return measure_script(arm, plan, turns)

    return measure


def measure_script(arm: Arm, plan: MeasurePlan, turns: TurnRequests | None = None) -> Measurement:
    """Runs a script in a new process until it is measured.

    Raises:
        TrialFailedError: It cannot be measured, for a known reason; the message names the arm.
        UserError: It cannot be started.
    """
    try:
        return watch(
            arm.command,
            arm.folder,
            turns or SilentProgress(),
            env=arm.env,
            plan=plan,
            cache=arm.cache,
            turn=turns,
            on_start=turns.started if turns is not None else lambda pid: None,
        )
    except TrialFailedError as error:
        raise TrialFailedError(error.kind, f"{arm.name}: {error}") from error
