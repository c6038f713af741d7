"""GPU locks: one job at a time per UUID on a machine, held as long as a process of the job lives.

It is flock's: whoever has inherited the descriptor holds it, and the kernel lets it go when the last of
them is gone, however they end. Whoever waits gets it in turn.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from sweeper.core.job import ANYWHERE, Job
from sweeper.telemetry.nvml.probe import full_uuid

FOLDER = Path("/tmp/sweeper-locks")
"""Where all users of a machine find the locks, whatever their TMPDIR. Where it cannot be written, each has a
folder of their own."""

_NOT_GPUS = {"", "cpu", ANYWHERE}
_MAX_SECONDS = 1e8
_WHOLE_UUID = len("GPU-01234567-89ab-cdef-0123-456789abcdef")


class DeviceBusyError(Exception):
    """Somebody else held a GPU all the time; the text is the message of the job's Failure."""


def lock_devices(folder: Path, job: Job, say: Callable[[str], None]) -> list[int]:
    """Returns descriptors that hold the GPUs of a job until all processes which have them are gone.

    Waits for whoever holds one, at most as long as the job may take. A production run measures nothing,
    and does not wait: others wait for it where it was there first. Jobs of one folder which take their
    windows in turn hold a GPU together.

    Args:
        folder: The job's.
        say: Told in a line whom it waits for.

    Raises:
        DeviceBusyError: The time is up.
    """
    deadline = time.monotonic() + job.timeout_seconds
    held = []
    # Sorted, so that two who want the same two never wait for each other.
    for uuid in sorted({_uuid(name) for name in job.device.split(",")} - _NOT_GPUS):
        try:
            descriptor = _open(uuid)
        except OSError as error:
            say(f"{uuid} is not locked: {error}")
            continue
        lock = _Lock(descriptor, folder, str(folder.parent) if job.turns else "")
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
                    "Wait until that has ended, or run on another GPU (`execution.gpus`)"
                ) from None
        # The trial may be another program (`isolation: exec`).
        os.set_inheritable(descriptor, True)
        held.append(descriptor)
    return held


class _Lock:
    """The lock in an open file, whose text says who took it: a process, and its job's folder.

    A group holds it together, in the name of the one that took it for them.
    """

    def __init__(self, descriptor: int, folder: Path, group: str) -> None:
        self._descriptor, self._group = descriptor, group
        self._me = f"{os.getpid()} {folder}"

    @property
    def holder(self) -> str:
        """Who took it, in words."""
        pid, _, folder = self._text().partition(" ")
        return f"process {pid} ({folder})" if folder else "another process"

    def try_to_take(self) -> bool:
        """Takes it, unless another holds it."""
        with contextlib.suppress(BlockingIOError):
            self._take(fcntl.LOCK_NB)
            return True
        return False

    def take(self, seconds: float) -> None:
        """Waits until it is taken.

        Raises:
            TimeoutError: The time is up.
        """
        with _alarm(seconds):
            self._take(0)

    def _take(self, flag: int) -> None:
        while True:
            if not self._is_the_groups():
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | flag)
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, os.fsencode(self._me), 0)
            if not self._group:
                return
            # From one kind of lock to the other, it is let go for a moment.
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | flag)
            if self._is_the_groups():
                return

    def _is_the_groups(self) -> bool:
        return bool(self._group) and os.path.dirname(self._text().partition(" ")[2]) == self._group

    def _text(self) -> str:
        return os.fsdecode(os.pread(self._descriptor, 4096, 0))


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in whatever the main thread waits for, after so many seconds."""

    def ring(number: int, frame: FrameType | None) -> NoReturn:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    # 0 would be no alarm at all, and what it takes is bounded.
    signal.setitimer(signal.ITIMER_REAL, min(max(seconds, 1e-3), _MAX_SECONDS))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _uuid(name: str) -> str:
    """Returns what a device is called by everyone: also one that is meant by its number, or in short."""
    return name if name in _NOT_GPUS or len(name) >= _WHOLE_UUID else full_uuid(name)


def _open(uuid: str) -> int:
    """Returns a descriptor of a GPU's file, which is made where it is not there.

    Raises:
        OSError: Neither the folder of all nor one of this user's own can be written.
    """
    # The older name of a MIG instance has slashes.
    name = f"{uuid.replace('/', '_')}.lock"
    try:
        return _opened(FOLDER, name, 0o1777, 0o666)
    except OSError:
        own = Path(tempfile.gettempdir()) / f"{FOLDER.name}-{os.getuid()}"
        return _opened(own, name, 0o700, 0o600)


def _opened(folder: Path, name: str, folder_mode: int, mode: int) -> int:
    mask = os.umask(0)
    try:
        folder.mkdir(folder_mode, exist_ok=True)
        # In a folder of all, the kernel may refuse to open another user's file with O_CREAT.
        for making in (0, os.O_CREAT | os.O_EXCL, 0):
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                return os.open(folder / name, os.O_RDWR | os.O_NOFOLLOW | making, mode)
        raise FileNotFoundError(f"{folder / name} comes and goes")
    finally:
        os.umask(mask)
