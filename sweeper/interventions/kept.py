"""Collated data sets that are kept in files, so that a later process of the same tune starts at once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import sys
import sysconfig
from collections.abc import Iterator
from pickle import Pickler
from typing import Any

VARIABLE = "SWEEPER_CHANGES_KEPT"
"""Environment variable that names the folder. Without it, nothing is kept."""

MAX_KEPT = 4
"""Data sets in a folder: a script whose data differ in each process would fill the disk."""

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARIES = tuple(
    path + os.sep for path in (_PACKAGE, sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
)
_NOT_OWN = "-packages" + os.sep


class _Digest:
    """A file that keeps a digest of what is written to it."""

    def __init__(self) -> None:
        self.found = hashlib.blake2b(digest_size=16)

    def write(self, data: Any) -> int:
        """Takes some bytes."""
        self.found.update(data)
        return len(data)


def _pickler(torch: Any, digest: _Digest) -> Pickler:
    class Digesting(Pickler):
        def reducer_override(self, found: Any) -> Any:
            # torch's own has the addresses of tensors in it.
            if type(found) is not torch.Tensor or found.layout is not torch.strided:
                return NotImplemented
            raw = found.detach().cpu().contiguous().flatten().view(torch.uint8)
            return tuple, ((str(found.dtype), tuple(found.shape), raw.numpy()),)

    return Digesting(digest, protocol=4)


def key_of(torch: Any, loader: Any) -> str:
    """Returns a digest of a loader's data set, of how it is collated, and of the script's code.

    Pickling may run code of the data set's: it belongs into a child process.

    Raises:
        Exception: It cannot be pickled.
    """
    digest = _Digest()
    # For the digest alone: nothing is ever unpickled.
    _pickler(torch, digest).dump((loader.dataset, loader.collate_fn, loader.batch_size))
    digest.write(repr((sys.version, torch.__version__)).encode())
    for path in sorted(_own_files()):
        # Some modules name a file that never was one.
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            digest.write(os.path.basename(path).encode() + file.read())
    return digest.found.hexdigest()


def _own_files() -> Iterator[str]:
    """Yields the files of the modules that are neither Python's, nor installed, nor this package's."""
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None) or ""
        if path.endswith(".py") and _NOT_OWN not in path and not path.startswith(_LIBRARIES):
            yield path


def _num_files(folder: str) -> int:
    """Returns how many files a folder has, without those that killed processes did not complete."""
    count = 0
    for name in os.listdir(folder):
        process = name.split(".")[1]
        if process.isdecimal() and not os.path.exists(f"/proc/{process}"):
            os.unlink(os.path.join(folder, name))
        else:
            count += 1
    return count


class Kept:
    """The file of one data set.

    Attributes:
        is_new: Whether there is none yet, and one is to be made.
    """

    def __init__(self, key: str) -> None:
        folder = os.environ.get(VARIABLE, "")
        self._path = os.path.join(folder, key) if folder and key else ""
        self._partial = f"{self._path}.{os.getpid()}"
        self._file: Any = None
        self.is_new = False

    def read(self) -> Any:
        """Returns what was kept beside the bytes, and the bytes; None if there is nothing.

        They are a private view of the file: what is written to them stays in this process.
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
        """Returns memory for the bytes, which child processes share: of a new file, if one may be made."""
        folder = os.path.dirname(self._path)
        try:
            if self._path and num_bytes and _num_files(folder) < 2 * MAX_KEPT:
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
        """The bytes are complete: from now on they are found, with what is written beside them."""
        if not self.is_new:
            return
        with contextlib.suppress(OSError):
            os.replace(f"{self._partial}.rows", f"{self._path}.rows")
            with open(f"{self._partial}.json", "w", encoding="utf-8") as file:
                json.dump(about, file)
            # Last: without it, the rows are not looked at.
            os.replace(f"{self._partial}.json", f"{self._path}.json")
        self._close()

    def drop(self) -> None:
        """The bytes are not to be kept."""
        with contextlib.suppress(OSError):
            os.unlink(f"{self._partial}.rows")
        self._close()

    def _close(self) -> None:
        self.is_new = False
        if self._file is not None:
            self._file.close()
            self._file = None
