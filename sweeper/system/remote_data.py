"""Copies remote data (s3, gs, hf, http and whatever else fsspec supports) to this machine once."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sweeper.errors import UserError
from sweeper.system.files import write_json

CACHE = "SWEEPER_DATA_CACHE"
"""Environment variable that names the folder of the copies."""
CHUNK = 8 * 2**20
AT_ONCE = 8
ABOUT = "copied.json"
MARKS = ("ETag", "etag", "md5Hash", "crc32c", "LastModified", "last_modified", "mtime", "updated", "sha256")
"""Fields by which file systems identify a file's content or change, the most specific first."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Remote:
    """A remote file.

    Attributes:
        path: The path, as the file system spells it.
        name: The path relative to the address; the file's name if the address is a single file.
        mark: A value that changes with the content; empty if the file system reports none.
    """

    path: str
    name: str
    size: int
    mark: str


@dataclass(frozen=True)
class _Listing:
    """The files at an address, with the file system that opens them."""

    system: Any
    is_file: bool
    files: list[Remote]


def is_remote(given: str) -> bool:
    """Returns whether a path is an address of remote data."""
    return "://" in given


def digest(address: str) -> str:
    """Returns a digest of the names, sizes and marks of the files at an address.

    Raises:
        UserError: The address has no files, or cannot be reached.
    """
    return _digest(address, _listed(address).files)


def local_copy(address: str, say: Say) -> Path:
    """Returns the local copy of the data at an address, made on the first call.

    An interrupted copy resumes with the files that are missing. If a file changes at the address, the
    data is copied again, to another folder.

    Args:
        say: Takes a line for the user.

    Raises:
        UserError: The address has no files or cannot be reached, or the disk has too little room.
    """
    found = _listed(address)
    folder = data_cache() / _digest(address, found.files)
    place = folder / "data"
    if not (folder / ABOUT).exists():
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            if not (folder / ABOUT).exists():
                _copy(found, place, _shown(address), say)
    return place / found.files[0].name if found.is_file else place


def data_cache() -> Path:
    """Returns the folder of cached data, which all state folders of this machine share."""
    given = os.environ.get(CACHE)
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sweeper" / "data"
    return Path(given) if given else usual


def _shown(address: str) -> str:
    """Returns an address without the parts that may be secret."""
    return re.sub(r"(://)[^/\s]*@|\?.*", r"\1", address)


def _listed(address: str) -> _Listing:
    # Slow to import, and not needed for local data.
    import fsspec

    kind = address.partition("://")[0]
    try:
        system, root = fsspec.core.url_to_fs(address)
        is_file = system.isfile(root)
        found: Mapping[str, Mapping[str, Any]]
        found = {root: system.info(root)} if is_file else system.find(root, detail=True)
        if not found:
            # Some file systems find nothing where they have no access; info() then raises.
            system.info(root)
    except FileNotFoundError as error:
        if error.__cause__ is not None and not isinstance(error.__cause__, FileNotFoundError):
            raise _unreachable(address, error.__cause__) from error
        found = {}
    except ImportError as error:
        raise UserError(
            f"`data.path` {_shown(address)!r} needs a package that is not installed ({error}). "
            "Install it with `pip install 'sweeper[remote]'`."
        ) from error
    except ValueError as error:
        raise UserError(
            f"`data.path` must be a path or an address that fsspec knows, but {kind}:// is none ({error})."
        ) from error
    except Exception as error:
        # The type of the error depends on the file system.
        raise _unreachable(address, error) from error
    files = [
        Remote(path, _name(path, root), int(info.get("size") or 0), _mark(info))
        for path, info in sorted(found.items())
        if info.get("type", "file") == "file"
    ]
    if not files:
        raise UserError(f"`data.path` must have data, but there is nothing at {_shown(address)!r}.")
    return _Listing(system, is_file, files)


def _unreachable(address: str, error: BaseException) -> UserError:
    why = str(error).strip().partition("\n")[0] or type(error).__name__
    return UserError(
        f"`data.path` {_shown(address)!r} cannot be reached: {why}. Check the address, the network "
        "and your credentials, or copy the data yourself and give its folder."
    )


def _name(path: str, root: str) -> str:
    """Returns a file's path relative to the address; for a single file, its name."""
    if path == root:
        return path.rstrip("/").rpartition("/")[2].partition("?")[0] or "data"
    return path.removeprefix(root).lstrip("/")


def _mark(info: Mapping[str, Any]) -> str:
    return next((str(info[name]) for name in MARKS if info.get(name)), "")


def _digest(address: str, files: list[Remote]) -> str:
    listed = [address, [(file.name, file.size, file.mark) for file in files]]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:16]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lets one process at a time copy into a folder; a process that dies frees the lock."""
    with open(folder / "lock", "w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _copy(found: _Listing, place: Path, address: str, say: Say) -> None:
    # Slow to import.
    from tqdm import tqdm

    files = found.files
    total = sum(file.size for file in files)
    _check_room(place.parent, total, address)
    say(f"Copying {_gib(total)} in {len(files):,} file{'s'[: len(files) > 1]} from {address}, once.")
    began = time.monotonic()
    bar = tqdm(total=total, unit="B", unit_scale=True, unit_divisor=1024, leave=False, disable=None)
    ended = threading.Event()

    def advance(count: int) -> None:
        if ended.is_set():
            raise OSError("another file could not be copied")
        bar.update(count)

    with bar, ThreadPoolExecutor(AT_ONCE) as pool:

        def one(file: Remote) -> str:
            return _copy_file(found.system, file, place / file.name, advance)

        try:
            digests = list(pool.map(one, files))
        except BaseException as error:
            ended.set()
            pool.shutdown(cancel_futures=True)
            # File systems raise their own exceptions, which need not be OSErrors.
            if isinstance(error, UserError) or not isinstance(error, Exception):
                raise
            raise UserError(
                f"copying {address} failed: {error}. The same command goes on from there."
            ) from error
    seconds = time.monotonic() - began
    about = [{**asdict(file), "sha256": each} for file, each in zip(files, digests, strict=True)]
    write_json(place.parent / ABOUT, {"address": address, "files": about})
    say(f"Copied to {place} in {seconds:.0f} s.")


def _copy_file(system: Any, file: Remote, to: Path, advance: Callable[[int], object]) -> str:
    """Copies a file, unless a copy exists, and returns its SHA-256 digest."""
    found = hashlib.sha256()
    if to.exists():
        with to.open("rb") as known:
            while chunk := known.read(CHUNK):
                found.update(chunk)
        advance(file.size)
        return found.hexdigest()
    to.parent.mkdir(parents=True, exist_ok=True)
    part = to.with_name(f".{to.name}.part")
    with system.open(file.path, "rb") as there, part.open("wb") as here:
        while chunk := there.read(CHUNK):
            found.update(chunk)
            here.write(chunk)
            advance(len(chunk))
    if file.size and part.stat().st_size != file.size:
        raise OSError(f"{file.path} has {file.size:,} bytes, but {part.stat().st_size:,} came")
    os.replace(part, to)
    return found.hexdigest()


def _check_room(folder: Path, needed: int, address: str) -> None:
    space = os.statvfs(folder)
    free = space.f_bavail * space.f_frsize
    if needed > free:
        raise UserError(
            f"{address} has {_gib(needed)}, but {folder} has room for {_gib(free)}. "
            f"Name another folder in ${CACHE}."
        )


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
