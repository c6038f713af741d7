"""Stores collated data sets in files: other ranks share them, and a later process starts at once."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import mmap
import os
import re
import sys
import sysconfig
import time
from collections.abc import Iterator
from pickle import Pickler
from types import FunctionType
from typing import Any

KEPT_VARIABLE = "SWEEPER_CHANGES_KEPT"
"""Environment variable that names the folder. Without it, nothing is stored."""

MAX_KEPT = 4
"""Maximum data sets in a folder: a script whose data differ in each process would fill the disk."""

MAX_WAIT_SECONDS = 200.0
"""Maximum seconds to wait for another process that collates the same data set."""

KEPT_FOLDER = "batches"
"""Name of the folder in a cache."""

MAX_PATHS = 10_000
"""Maximum number of files and folders named by a data set whose time and size are part of its key."""

_OWN = re.compile(
    r"((images|pictures)-)?[0-9a-f]{32}\.((?P<process>\d+)-(?P<node>[0-9a-f]{8})\.)?(rows|json|lock)"
)
"""Names of files that are stored here; all others are somebody else's."""

_PACKAGE = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
_LIBRARIES = tuple(
    path + os.sep for path in (_PACKAGE, sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
)
_NOT_OWN = "-packages" + os.sep


class _Digest:
    """A file that computes a digest of what is written to it."""

    def __init__(self) -> None:
        self.hash = hashlib.blake2b(digest_size=16)

    def write(self, data: Any) -> int:
        """Takes some bytes."""
        self.hash.update(data)
        return len(data)


def _pickler(torch: Any, digest: _Digest) -> Pickler:
    class DigestPickler(Pickler):
        def reducer_override(self, value: Any) -> Any:
            if type(value) is FunctionType and "<" in value.__qualname__:
                # A lambda, or a function within a function, which pickle cannot find by its name.
                cells = tuple(cell.cell_contents for cell in value.__closure__ or ())
                return tuple, ((value.__code__.co_code, value.__code__.co_firstlineno, cells),)
            # torch's own pickle contains the addresses of tensors.
            if type(value) is not torch.Tensor or value.layout is not torch.strided:
                return NotImplemented
            raw = value.detach().cpu().contiguous().flatten().view(torch.uint8)
            return tuple, ((str(value.dtype), tuple(value.shape), raw.numpy()),)

    return DigestPickler(digest, protocol=4)


def digest_of_state(torch: Any, *values: Any) -> str:
    """Returns a digest of the pickled state of some values.

    Raises:
        Exception: They cannot be pickled.
    """
    digest = _Digest()
    # For the digest alone: nothing is ever unpickled.
    _pickler(torch, digest).dump(values)
    return digest.hash.hexdigest()


def key_of(torch: Any, loader: Any) -> str:
    """Returns a digest of a loader's data set, of how it is collated, and of the script's code.

    Pickling may run the data set's code, so this must run in a child process.

    Raises:
        Exception: It cannot be pickled.
    """
    digest = _Digest()
    digest.write(digest_of_state(torch, loader.dataset, loader.collate_fn, loader.batch_size).encode())
    for path in _paths(loader.dataset):
        with contextlib.suppress(OSError, ValueError):
            status = os.stat(path)
            digest.write(f"{path} {status.st_mtime_ns} {status.st_size}".encode())
    digest.write(repr((sys.version, torch.__version__)).encode())
    for path in sorted(_own_files()):
        # Some modules name a file that never existed.
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            digest.write(os.path.basename(path).encode() + file.read())
    return digest.hash.hexdigest()


def _paths(owner: Any) -> Iterator[str]:
    """Yields those values in a data set that may name a file or a folder."""
    waiting, seen, count = [owner], set(), 0
    while waiting and count < MAX_PATHS:
        value = waiting.pop()
        if isinstance(value, (str, os.PathLike)):
            path = os.fspath(value)
            if isinstance(path, str) and os.sep in path:
                count += 1
                yield path
            continue
        if isinstance(value, (int, float, bytes)) or value is None or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            waiting += list(value.values())[:MAX_PATHS]
        elif isinstance(value, (list, tuple)):
            waiting += value[:MAX_PATHS]
        elif not isinstance(value, type):
            waiting += list(getattr(value, "__dict__", {}).values())


def _own_files() -> Iterator[str]:
    """Yields the files of the modules that are neither Python's, nor installed, nor this package's."""
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None) or ""
        if path.endswith(".py") and _NOT_OWN not in path and not path.startswith(_LIBRARIES):
            yield path


def _num_kept(folder: str) -> int:
    """Returns how many data sets a folder has, and removes those that killed processes did not complete."""
    count = 0
    for name in os.listdir(folder):
        match = _OWN.fullmatch(name)
        if match is None:
            continue
        process, node = match.group("process", "node")
        count += name.endswith(".rows")
        if process and node == _node() and not os.path.exists(f"/proc/{process}"):
            count -= name.endswith(".rows")
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, name))
    return count


def _node() -> str:
    """Returns an id that distinguishes this machine or container from others that see the same folder."""
    return hashlib.blake2b(os.uname().nodename.encode(), digest_size=4).hexdigest()


def _lock(descriptor: int, deadline_s: float) -> None:
    """Locks a file; gives up at the deadline if another process still has it."""
    # Not with `sweeper.system.flock`: changes import nothing of the tool, since the script's interpreter,
    # from Python 3.8 on, runs them.
    while time.monotonic() < deadline_s:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        else:
            return


class DatasetFile:
    """The file of one data set.

    Attributes:
        is_new: Whether a new file is being made.
    """

    def __init__(self, key: str) -> None:
        folder = os.environ.get(KEPT_VARIABLE, "")
        self._path = os.path.join(folder, key) if folder and key else ""
        self._partial = f"{self._path}.{os.getpid()}-{_node()}"
        self._file: Any = None
        self.is_new = False

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Makes other processes that need the same data set wait until this one is done with it."""
        with contextlib.ExitStack() as stack:
            # Without a lock, each process makes its own file.
            with contextlib.suppress(OSError):
                if self._path:
                    lock = stack.enter_context(open(f"{self._path}.lock", "w", encoding="ascii"))
                    _lock(lock.fileno(), time.monotonic() + MAX_WAIT_SECONDS)
            yield

    def read(self) -> Any:
        """Returns the stored description and the bytes; None if there are none.

        The bytes are a private view of the file: changes to them stay in this process.
        """
        if not self._path:
            return None
        try:
            with open(f"{self._path}.json", encoding="utf-8") as file:
                about = json.load(file)
            with open(f"{self._path}.rows", "rb") as file:
                return about, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError):
            return None

    def room(self, num_bytes: int) -> Any:
        """Returns memory for the bytes that child processes share, from a new file if one may be made."""
        folder = os.path.dirname(self._path)
        try:
            if self._path and num_bytes and _num_kept(folder) < MAX_KEPT:
                space = os.statvfs(folder)
                if num_bytes < space.f_bavail * space.f_frsize / 4:
                    self._file = open(f"{self._partial}.rows", "w+b")  # noqa: SIM115
                    os.posix_fallocate(self._file.fileno(), 0, num_bytes)
                    self.is_new = True
                    return mmap.mmap(self._file.fileno(), num_bytes)
        except OSError:
            self.drop()
        return mmap.mmap(-1, max(1, num_bytes))

    def keep(self, about: Any) -> None:
        """Publishes the complete bytes with their description, so that other processes find them."""
        if not self.is_new:
            return
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileNotFoundError):
                # An older description would be wrong for the new rows if this process were killed here.
                os.unlink(f"{self._path}.json")
            os.replace(f"{self._partial}.rows", f"{self._path}.rows")
            with open(f"{self._partial}.json", "w", encoding="utf-8") as file:
                json.dump(about, file)
            # The description comes last: without it, the rows are ignored.
            os.replace(f"{self._partial}.json", f"{self._path}.json")
        self._close()

    def drop(self) -> None:
        """Discards the bytes."""
        with contextlib.suppress(OSError):
            os.unlink(f"{self._partial}.rows")
        self._close()

    def _close(self) -> None:
        self.is_new = False
        if self._file is not None:
            self._file.close()
            self._file = None
