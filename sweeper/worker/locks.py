"""Locks GPUs: one job at a time per UUID on a machine, as long as a process of the job lives.

The locks use flock: every process that inherits the descriptor holds the lock, and the kernel releases
it when the last of them is gone, however it ends. Waiting jobs get the lock in turn.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sweeper.core.job import ANYWHERE, Job
from sweeper.system.flock import take_lock
from sweeper.system.process import time_limit
from sweeper.telemetry.nvml.devices import full_uuid

FOLDER = Path("/tmp/sweeper-locks")
"""Shared by all users of a machine, whatever their TMPDIR. If it is not writable, each user has a
separate folder."""

_NOT_GPUS = {"", "cpu", ANYWHERE}
_WHOLE_UUID = len("GPU-01234567-89ab-cdef-0123-456789abcdef")


class DeviceBusyError(Exception):
    """Another job held a GPU until the timeout; the text is the message of the job's Failure."""


def lock_devices(folder: Path, job: Job, say: Callable[[str], None]) -> list[int]:
    """Returns descriptors that hold a job's GPUs until all processes that inherit them are gone.

    Waits for the current holder, at most as long as the job may take. A production run measures
    nothing and does not wait; others wait for it if it came first. Jobs of one folder that take
    their windows in turn share a lock.

    Args:
        folder: The job's folder.
        say: Takes a line that names the holder it waits for.

    Raises:
        DeviceBusyError: The GPU is still held after the job's timeout.
    """
    deadline = time.monotonic() + job.timeout_seconds
    held = []
    # Sorted, so that two jobs that want the same two GPUs never deadlock.
    for uuid in sorted({_uuid(name) for name in job.device.split(",")} - _NOT_GPUS):
        try:
            descriptor = _open(uuid)
        except OSError as error:
            say(f"{uuid} is not locked: {error}")
            continue
        lock = _Lock(descriptor, folder, str(folder.parent) if job.turns_folder else "")
        if not lock.try_to_take():
            say(f"{uuid} is held by {lock.holder}")
            if job.training is not None:
                os.close(descriptor)
                continue
            try:
                lock.take(deadline - time.monotonic())
            except TimeoutError:
                raise DeviceBusyError(
                    f"{uuid} must be free, but was held for {job.timeout_seconds:g} s by {lock.holder}. "
                    "Wait until it has finished, or run on another GPU (`execution.gpus`)"
                ) from None
        held.append(descriptor)
    return held


class _Lock:
    """A lock on an open file, whose text names its holder: a process and its job's folder.

    A group shares the lock; the text names the member that took it first.
    """

    def __init__(self, descriptor: int, folder: Path, group: str) -> None:
        self._descriptor, self._group = descriptor, group
        self._me = f"{os.getpid()} {folder}"

    @property
    def holder(self) -> str:
        """Describes the holder."""
        pid, _, folder = self._text().partition(" ")
        return f"process {pid} ({folder})" if folder else "another process"

    def try_to_take(self) -> bool:
        """Takes the lock unless it is held; returns whether it did."""
        with contextlib.suppress(BlockingIOError):
            self._take(wait=False)
            return True
        return False

    def take(self, seconds: float) -> None:
        """Waits for the lock.

        Raises:
            TimeoutError: It is still held after `seconds`.
        """
        with time_limit(seconds):
            self._take(wait=True)

    def _take(self, *, wait: bool) -> None:
        while True:
            if not self._is_the_groups():
                take_lock(self._descriptor, wait=wait)
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, os.fsencode(self._me), 0)
            if not self._group:
                return
            # Another group may take the lock while it is converted.
            take_lock(self._descriptor, wait=wait, shared=True)
            if self._is_the_groups():
                return

    def _is_the_groups(self) -> bool:
        return bool(self._group) and os.path.dirname(self._text().partition(" ")[2]) == self._group

    def _text(self) -> str:
        return os.fsdecode(os.pread(self._descriptor, 4096, 0))


def _uuid(name: str) -> str:
    """Returns the full UUID of a device that is given by number or by an abbreviated UUID."""
    return name if name in _NOT_GPUS or len(name) >= _WHOLE_UUID else full_uuid(name)


def _open(uuid: str) -> int:
    """Opens a GPU's lock file, creating it if needed.

    Raises:
        OSError: Neither the shared folder nor this user's own is writable.
    """
    # The older name of a MIG instance has slashes.
    name = f"{uuid.replace('/', '_')}.lock"
    try:
        return _open_in(FOLDER, name, 0o1777, 0o666)
    except OSError:
        folder = Path(tempfile.gettempdir()) / f"{FOLDER.name}-{os.getuid()}"
        return _open_in(folder, name, 0o700, 0o600)


def _open_in(folder: Path, name: str, folder_mode: int, mode: int) -> int:
    mask = os.umask(0)
    try:
        folder.mkdir(folder_mode, exist_ok=True)
        # In a shared folder, the kernel may refuse to open another user's file with O_CREAT.
        for making in (0, os.O_CREAT | os.O_EXCL, 0):
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                return os.open(folder / name, os.O_RDWR | os.O_NOFOLLOW | making, mode)
        raise FileNotFoundError(f"{folder / name} keeps appearing and disappearing")
    finally:
        os.umask(mask)
