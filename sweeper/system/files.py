"""Writes files atomically and durably: readers see all or nothing, power cuts lose nothing."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sweeper.errors import EnvironmentStopError

MAX_BYTES = 256 * 1024 * 1024
"""Of a JSON file of ours; a longer one is not."""

_MAX_WHY = 200
_TEMPORARY = re.compile(r"\..+\.([0-9]+)\.tmp")
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


def write_atomic(path: Path, text: str) -> None:
    """Writes `text` to `path`: temporary name, fsync, rename, fsync of the directory."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8", errors="backslashreplace", opener=_new) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def make_folder(path: Path) -> None:
    """Makes a folder, and those above it, where they are not there; a power cut does not lose them."""
    new = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in new:
        _sync(each.parent)


def _sync(folder: Path) -> None:
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _new(path: str, flags: int) -> int:
    """Makes a file that was not there: neither a link nor what is behind one is ever written to."""
    try:
        return os.open(path, _CREATE, 0o666)
    except FileExistsError:
        # Left by a killed process that had this one's number.
        os.unlink(path)
        return os.open(path, _CREATE, 0o666)


def remove_temporaries(folder: Path) -> None:
    """Removes what `write_atomic` of processes that are gone left below `folder`; links are not followed."""
    for place, _, names in os.walk(folder):
        for name in names:
            found = _TEMPORARY.fullmatch(name)
            if found and not os.path.exists(f"/proc/{found[1]}"):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(place, name))


def write_json(path: Path, value: Any) -> None:
    """Writes an encoded value atomically; NaN never reaches the file."""
    write_atomic(path, json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Returns the JSON value at `path`.

    Raises:
        OSError: It cannot be read, or is no regular file.
        ValueError: It is not JSON.
    """
    # Without waiting for the other end of a pipe.
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
def ours(path: Path, remedy: str) -> Iterator[None]:
    """Turns whatever comes of reading a file that we wrote, and something else has spoilt, into one line.

    Args:
        remedy: What the person is to do, in the imperative, without a full stop.

    Raises:
        EnvironmentStopError: In place of any exception but FileNotFoundError, which passes.
    """
    try:
        yield
    except (FileNotFoundError, EnvironmentStopError):
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        why = " ".join(text.split()).rstrip(".")[:_MAX_WHY]
        raise EnvironmentStopError(
            f"{path} is not as it was written ({why}). Nothing was changed. {remedy}."
        ) from error
