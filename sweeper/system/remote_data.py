"""Copies remote data (s3, gs, hf, http and whatever else fsspec supports) to this machine once."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sweeper.errors import UserError
from sweeper.system.files import read_json, write_json
from sweeper.system.flock import open_locked

CACHE = "SWEEPER_DATA_CACHE"
"""Environment variable that names the folder of the copies."""
CHUNK = 8 * 2**20
AT_ONCE = 8
ABOUT = "copied.json"
MARKS = (
    *("ETag", "etag", "md5Hash", "crc32c", "blob_id", "LastModified", "last_modified", "Last-Modified"),
    *("mtime", "updated", "sha256"),
)
"""Fields by which file systems identify a file's content or change, the most specific first."""

SAME_START_SECONDS = 60.0
"""How long a list of files stays valid: a start asks several times and must get the same answer."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class RemoteFile:
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
    """The files at an address, with the file system that opens them.

    Attributes:
        note: A line for the user if the list is from a local copy; empty if it is from the address.
    """

    system: Any
    is_file: bool
    files: list[RemoteFile]
    note: str = ""


_listings: dict[str, tuple[float, _Listing]] = {}
"""The last list of each address, with its time by the monotonic clock."""


class _UnreachableError(UserError):
    """The files at an address cannot be listed; `why` is the cause in one line."""

    def __init__(self, address: str, error: BaseException) -> None:
        self.why = _public_address(str(error).strip().partition("\n")[0]) or type(error).__name__
        super().__init__(
            f"`data.path` {_public_address(address)!r} cannot be reached: {self.why}. Check the address, "
            "the network and your credentials, or copy the data yourself and name its folder."
        )


def is_remote(given: str) -> bool:
    """Returns whether a path is an address of remote data."""
    return "://" in given


def digest(address: str) -> str:
    """Returns a digest of the names, sizes and marks of the files at an address, or of its latest copy.

    Raises:
        UserError: The address has no files, or it cannot be reached and there is no copy.
    """
    return _digest(address, _find_files(address).files)


def local_copy(address: str, say: Say) -> Path:
    """Returns the local copy of the data at an address, made on the first call.

    An interrupted copy resumes with the files that are missing. If a file changes at the address, the
    data is copied again, to another folder. If the address cannot be reached, the latest copy is used.

    Args:
        say: Takes a line for the user.

    Raises:
        UserError: The address has no files, it cannot be reached and there is no copy, or the disk has
            too little room.
    """
    listing = _find_files(address)
    if listing.note:
        say(listing.note)
    folder = data_cache() / _digest(address, listing.files)
    place = folder / "data"
    if not (folder / ABOUT).exists():
        folder.mkdir(parents=True, exist_ok=True)
        # One process at a time copies into a folder; a process that dies frees the lock.
        with open_locked(folder / "lock"):
            if not (folder / ABOUT).exists():
                _copy(listing, place, _public_address(address), say)
    return place / listing.files[0].name if listing.is_file else place


def data_cache() -> Path:
    """Returns the folder of cached data, which all state folders of this machine share."""
    given = os.environ.get(CACHE)
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sweeper" / "data"
    return Path(given) if given else default


def check_room(folder: Path, needed: int, what: str) -> None:
    """Checks that the disk of a folder in the data cache has room for `needed` more bytes.

    Args:
        what: The subject of the message: what needs these bytes.

    Raises:
        UserError: It has too little room.
    """
    space = os.statvfs(folder)
    free = space.f_bavail * space.f_frsize
    if needed > free:
        raise UserError(
            f"{what} needs {_gib(needed)}, but {folder} has room for {_gib(free)}. "
            f"Set ${CACHE} to a folder on another disk."
        )


def _public_address(address: str) -> str:
    """Returns an address without the parts that may be secret."""
    return re.sub(r"(://)[^/\s]*@|\?.*", r"\1", address)


def _find_files(address: str) -> _Listing:
    """Returns the files at an address; if it cannot be reached, those of its latest copy."""
    at_s, listing = _listings.get(address, (-math.inf, None))
    if listing is not None and time.monotonic() - at_s < SAME_START_SECONDS:
        return listing
    try:
        listing = _list_files(address)
    except _UnreachableError as error:
        if (kept := _latest_copy(address)) is None:
            raise
        listing, copied_at = kept
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(copied_at))
        note = f"{_public_address(address)} cannot be listed ({error.why}); using the copy of {when}."
        listing = dataclasses.replace(listing, note=note)
    _listings[address] = time.monotonic(), listing
    return listing


def _latest_copy(address: str) -> tuple[_Listing, float] | None:
    """Returns the files of the latest complete copy of an address, and when it was made."""
    copies: list[tuple[float, _Listing]] = []
    for path in data_cache().glob(f"*/{ABOUT}"):
        # Another copy's file may be damaged, or may be removed at this moment.
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            about = read_json(path)
            files = [
                RemoteFile(file["path"], file["name"], file["size"], file["mark"]) for file in about["files"]
            ]
            # The folder's name is compared, because the address in the file lacks any secret parts.
            if path.parent.name == _digest(address, files):
                copies.append((path.stat().st_mtime, _Listing(None, about["is_file"], files)))
    at, listing = max(copies, key=lambda copy: copy[0], default=(0.0, None))
    return None if listing is None else (listing, at)


def _list_files(address: str) -> _Listing:
    # Slow to import, and not needed for local data.
    import fsspec

    kind = address.partition("://")[0]
    try:
        system, root = fsspec.core.url_to_fs(address)
        is_file = system.isfile(root)
        infos: Mapping[str, Mapping[str, Any]]
        infos = {root: system.info(root)} if is_file else system.find(root, detail=True)
        if not infos:
            # Some file systems find nothing where they have no access; info() then raises.
            system.info(root)
    except FileNotFoundError as error:
        if error.__cause__ is not None and not isinstance(error.__cause__, FileNotFoundError):
            raise _UnreachableError(address, error.__cause__) from error
        infos = {}
    except ImportError as error:
        raise UserError(
            f"`data.path` {_public_address(address)!r} needs a package that is not installed ({error}). "
            "Install it with `pip install 'sweeper-torch[remote]'`."
        ) from error
    except ValueError as error:
        raise UserError(
            f"`data.path` must be a path or an address that fsspec supports, but got {kind}:// ({error})."
        ) from error
    except Exception as error:
        # The type of the error depends on the file system.
        raise _UnreachableError(address, error) from error
    if outside := [path for path in infos if ".." in _name(path, root).split("/")]:
        raise UserError(f"`data.path` must not have files with `..` in their names, but got {outside[0]!r}.")
    files = [
        RemoteFile(path, _name(path, root), int(info.get("size") or 0), _mark(info))
        for path, info in sorted(infos.items())
        if info.get("type", "file") == "file"
    ]
    if not files:
        raise UserError(f"`data.path` must name data, but there is nothing at {_public_address(address)!r}.")
    if is_file and infos[root].get("mimetype") == "text/html":
        raise UserError(
            f"`data.path` must name data, but {_public_address(address)!r} is an HTML page. Name a file, "
            "use a protocol that lists folders (s3://, hf://), or copy the data yourself and name its folder."
        )
    return _Listing(system, is_file, files)


def _name(path: str, root: str) -> str:
    """Returns a file's path relative to the address; for a single file, its name."""
    if path == root:
        return path.rstrip("/").rpartition("/")[2].partition("?")[0] or "data"
    return path.removeprefix(root).lstrip("/")


def _mark(info: Mapping[str, Any]) -> str:
    return next((str(info[name]) for name in MARKS if info.get(name)), "")


def _digest(address: str, files: list[RemoteFile]) -> str:
    listed = [address, [(file.name, file.size, file.mark) for file in files]]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:16]


def _copy(listing: _Listing, place: Path, address: str, say: Say) -> None:
    # Slow to import.
    from tqdm import tqdm

    files = listing.files
    total = sum(file.size for file in files)
    # An interrupted copy leaves whole files, and parts of files that are written again from the start.
    there = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    check_room(place.parent, total - there, address)
    say(f"Copying {_gib(total)} in {len(files):,} file{'s'[: len(files) > 1]} from {address}, once.")
    began = time.monotonic()
    bar = tqdm(total=total, unit="B", unit_scale=True, unit_divisor=1024, leave=False, disable=None)
    ended = threading.Event()

    def advance(count: int) -> None:
        if ended.is_set():
            raise OSError("another file could not be copied")
        bar.update(count)

    with bar, ThreadPoolExecutor(AT_ONCE) as pool:

        def copy_file(file: RemoteFile) -> str:
            return _copy_file(listing.system, file, place / file.name, advance)

        try:
            digests = list(pool.map(copy_file, files))
        except BaseException as error:
            ended.set()
            pool.shutdown(cancel_futures=True)
            # File systems raise their own exceptions, which need not be OSErrors.
            if isinstance(error, UserError) or not isinstance(error, Exception):
                raise
            raise UserError(
                f"copying {address} failed: {error}. Run the same command again to resume."
            ) from error
    seconds = time.monotonic() - began
    about = [{**asdict(file), "sha256": sha256} for file, sha256 in zip(files, digests, strict=True)]
    write_json(place.parent / ABOUT, {"address": address, "is_file": listing.is_file, "files": about})
    say(f"Copied to {place} in {seconds:.0f} s.")


def _copy_file(system: Any, file: RemoteFile, to: Path, advance: Callable[[int], object]) -> str:
    """Copies a file, unless a copy exists, and returns its SHA-256 digest."""
    sha256 = hashlib.sha256()
    # After a power cut, a file may be shorter than it was.
    if to.exists() and to.stat().st_size == (file.size or to.stat().st_size):
        with to.open("rb") as copy:
            while chunk := copy.read(CHUNK):
                sha256.update(chunk)
        advance(file.size)
        return sha256.hexdigest()
    to.parent.mkdir(parents=True, exist_ok=True)
    part = to.with_name(f".{to.name}.part")
    with system.open(file.path, "rb") as there, part.open("wb") as here:
        while chunk := there.read(CHUNK):
            sha256.update(chunk)
            here.write(chunk)
            advance(len(chunk))
        here.flush()
        os.fsync(here.fileno())
    if file.size and part.stat().st_size != file.size:
        raise OSError(f"{file.path} has {file.size:,} bytes, but {part.stat().st_size:,} were received")
    os.replace(part, to)
    return sha256.hexdigest()


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
