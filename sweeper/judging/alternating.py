"""Runs one round of two versions that take turns: one runs while the other is stopped.

The speed of a host changes within seconds: two consecutive runs of one script differ by a tenth. Alternating
slices of both versions share the host's speed, and each process starts only once.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import psutil

from sweeper.core.measurement import Measurement
from sweeper.system.process import open_files, tree, usage
from sweeper.telemetry.nvml.devices import gpu_uuids, memory_used_gib

Measure = Callable[["Turns"], Measurement]
"""Function that measures a version in turns."""

MORE_ROOM = 1.25
"""Free memory that the other version needs, as a multiple of the memory of the running one."""
CONTEXT_GIB = 0.1
"""A process that uses a GPU takes more memory than this."""
CUDA = "/dev/nvidia-uvm"
"""A process that uses CUDA has this open, and one that only asks NVML has not."""


class Turns:
    """Requests for the windows of one version."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken, self._asked, self._is_over = -1, 0, False
        self._pid = 0

    # -- the version's side

    def started(self, pid: int) -> None:
        """Records the process ID of its script, which has started."""
        self._pid = pid

    def wait(self, taken: int) -> bool:
        """Reports the windows taken; returns True once another is requested, or False at the end."""
        with self._changed:
            self._taken = taken
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._asked > taken or self._is_over)
            return self._asked > taken

    # -- the other side

    def ended(self) -> None:
        """Records that the version has been measured, or has failed."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    @property
    def is_over(self) -> bool:
        """Whether the version has been measured, or has failed: a training may be shorter than its turns."""
        with self._changed:
            return self._is_over

    def await_start(self) -> None:
        """Waits until the version is ready for its first turn, or has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._taken >= 0 or self._is_over)

    def ask(self) -> None:
        """Requests a window; returns once it is taken, or the version has ended."""
        with self._changed:
            self._asked += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._taken >= self._asked or self._is_over)

    def kill(self) -> None:
        """Kills its script and ends its turns."""
        self.ended()
        if self._pid:
            # A launcher's workers are in separate sessions, and stopped ones would stay forever.
            for each in list(tree(self._pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)

    def memory_bytes(self) -> int:
        """Returns the resident memory of its processes, in bytes."""
        return sum(found.resident_bytes for each in tree(self._pid) if (found := usage(each)) is not None)

    def has_open(self, path: str) -> bool:
        """Returns whether one of its processes has a file open."""
        return any(path in open_files(pid) for pid in tree(self._pid))


def alternated(
    measures: Mapping[int, Measure], order: list[int], slices: int, draw: random.Random
) -> dict[int, Measurement]:
    """Measures versions in alternating slices, or one after the other if memory is short or a GPU is used.

    Args:
        measures: The function that measures each version, by its number.
        order: Numbers of the versions, in the order in which they start.
        slices: Windows of each version.

    Raises:
        TrialFailedError: A version cannot be measured.
        UserError: A version cannot be started.
    """
    turns = {number: Turns() for number in order}
    on_gpus = _used_gib()
    with ThreadPoolExecutor(len(order)) as pool:
        running: dict[int, Future[Measurement]] = {}

        def start(number: int) -> None:
            def run() -> Measurement:
                try:
                    return measures[number](turns[number])
                finally:
                    turns[number].ended()

            running[number] = pool.submit(run)
            turns[number].await_start()
            if turns[number].is_over:
                # The version has failed, or its training is short.
                running[number].result()

        try:
            first, *others = order
            start(first)
            if _has_room(turns[first], on_gpus):
                for number in others:
                    start(number)
                for _ in range(slices):
                    if any(each.is_over for each in turns.values()):
                        break
                    draw.shuffle(order)
                    for number in order:
                        turns[number].ask()
            else:
                _take(turns[first], slices)
                running[first].result()
                for number in others:
                    start(number)
                    _take(turns[number], slices)
                    running[number].result()
            for each in turns.values():
                each.ended()
            return {number: running[number].result() for number in measures}
        except BaseException:
            for each in turns.values():
                each.kill()
            raise


def _take(turns: Turns, slices: int) -> None:
    for _ in range(slices):
        turns.ask()
    turns.ended()


def _has_room(turns: Turns, on_gpus: Mapping[str, float]) -> bool:
    """Returns whether the host has memory for a second version of the same size, and no GPU is used.

    The GPU still runs what a stopped process has queued, where a rank may wait for another stopped rank.
    """
    if psutil.virtual_memory().available < MORE_ROOM * turns.memory_bytes():
        return False
    if not (now := _used_gib()):
        return not turns.has_open(CUDA)
    return all(used - on_gpus.get(uuid, 0.0) < CONTEXT_GIB for uuid, used in now.items())


def _used_gib() -> dict[str, float]:
    return {uuid: memory_used_gib(uuid) or 0.0 for uuid in gpu_uuids()}
