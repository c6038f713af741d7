"""Writes files atomically and durably: readers see all or nothing, and a power cut loses nothing."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sweeper.errors import EnvironmentStopError, UserError

STDOUT = Path("-")
"""An output file of this name stands for standard output."""

MAX_BYTES = 256 * 1024 * 1024
"""The largest JSON file that is read."""

_MAX_WHY = 200
_TEMPORARY = re.compile(r"\..+\.([0-9]+)\.tmp")
_WRITABLE = "Allow writing there, or name a writable folder, such as a copy of the state folder, with --home"
_REMEDIES = {
    errno.ENOSPC: "Free some space",
    errno.EDQUOT: "Free some of your quota",
    errno.EIO: "Check the disk",
    errno.EROFS: _WRITABLE,
    errno.EACCES: _WRITABLE,
    errno.EEXIST: "Move away the file that is in its place",
    errno.ENOTDIR: "Move away the file that is in its place",
}
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


def write_atomic(path: Path, text: str) -> None:
    """Writes `text` to `path`: temporary name, fsync, rename, fsync of the directory."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8", errors="backslashreplace", opener=_create) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def check_out(path: Path, option: str = "--out") -> None:
    """Checks that a command may write its output to a file.

    Args:
        option: The option that names the file.

    Raises:
        UserError: It is not a regular file, or not in a folder that exists.
    """
    # Writing replaces what is there, even a device such as /dev/null.
    if (path.exists() and not path.is_file()) or not path.parent.is_dir():
        raise UserError(f"`{option}` must be a file in a folder that exists, but got {str(path)!r}.")


def make_folder(path: Path) -> None:
    """Creates a folder and its missing parents; they survive a power cut."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in new:
        _sync(folder.parent)


def _sync(folder: Path) -> None:
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _create(path: str, flags: int) -> int:
    """Creates a new file; never writes through a link."""
    try:
        return os.open(path, _CREATE, 0o666)
    except FileExistsError:
        # Left by a killed process with the same id.
        os.unlink(path)
        return os.open(path, _CREATE, 0o666)


def remove_temporaries(folder: Path) -> None:
    """Removes temporary files that dead processes left below `folder`; links are not followed."""
    for place, _, names in os.walk(folder):
        for name in names:
            match = _TEMPORARY.fullmatch(name)
            if match and not os.path.exists(f"/proc/{match[1]}"):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(place, name))


def write_json(path: Path, value: Any) -> None:
    """Writes an encoded value atomically; raises ValueError for NaN and infinity."""
    write_atomic(path, json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Returns the JSON value at `path`.

    Raises:
        OSError: It cannot be read, or is not a regular file.
        ValueError: It is not JSON.
    """
    # Opening a pipe must not wait for its other end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            raise OSError(f"it is not a regular file of at most {MAX_BYTES} bytes")
        content = os.read(descriptor, status.st_size)
    finally:
        os.close(descriptor)
    return json.loads(content.decode())


@contextlib.contextmanager
def reading(path: Path, remedy: str) -> Iterator[None]:
    """Turns an error from reading one of sweeper's files into a one-line message.

    Args:
        remedy: What the user should do, in the imperative, without a full stop.

    Raises:
        EnvironmentStopError: The file cannot be read or decoded. FileNotFoundError passes through.
    """
    try:
        yield
    except (FileNotFoundError, EnvironmentStopError):
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        why = " ".join(text.split()).rstrip(".")[:_MAX_WHY]
        raise EnvironmentStopError(f"{path} is damaged ({why}). Nothing was changed. {remedy}.") from error


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns an error from writing in a folder into one with a remedy.

    Raises:
        EnvironmentStopError: The folder cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise cannot_write(error, folder) from error


def cannot_write(error: OSError, folder: Path | None = None) -> EnvironmentStopError:
    """Returns the error for what cannot be written, with its remedy.

    Args:
        folder: Where something was to be written; by default, at the path that the error names, if any.
    """
    if folder is not None:
        place, kept = f" in {folder}", " What was measured is kept."
    else:
        place, kept = f" {error.filename}" if error.filename else "", ""
    remedy = _REMEDIES.get(error.errno or 0, "Fix that")
    return EnvironmentStopError(
        f"cannot write{place}: {error.strerror or error}.{kept} {remedy}, and run the same command again."
    )


def drop_from_page_cache(root: Path) -> None:
    """Drops a file, or all files of a folder, from memory, so that they are read from the disk again.

    Pages that another process has mapped, or that are not yet on the disk, stay in memory.
    """
    files = (path for path in root.rglob("*") if path.is_file()) if root.is_dir() else [root]
    for path in files:
        with contextlib.suppress(OSError):
            number = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(number)
