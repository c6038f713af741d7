"""What is in folders, entry by entry, and what has changed between two looks at them.

Standard library alone, and nothing of the product's: a judge shares no code with what it judges.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

TYPES = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
}
METADATA = frozenset({"mode", "uid", "gid", "mtime_ns", "ctime_ns", "xattrs"})
"""What `changes` leaves out on request."""
CHUNK_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a folder. There is no access time: whoever reads changes it."""

    type: str
    mode: int
    uid: int
    gid: int
    device: int
    inode: int
    nlink: int
    size: int
    mtime_ns: int
    ctime_ns: int
    target: str
    """Of a link."""
    digest: str
    """SHA-256 of a file's contents, or why it cannot be read."""
    xattrs: tuple[tuple[str, bytes], ...]


def snapshot(*roots: Path, ignoring: Collection[Path] = ()) -> dict[str, Entry]:
    """Looks at folders and at everything below them. Links are looked at and never followed.

    Args:
        roots: Folders, which are entries themselves.
        ignoring: Paths that are left out, with everything below them.

    Raises:
        FileNotFoundError: A root does not exist. Nothing looked at is nothing judged.
    """
    left_out = {os.path.abspath(path) for path in ignoring}
    entries: dict[str, Entry] = {}
    for root in roots:
        for path in _below(os.path.abspath(root), left_out):
            if path not in entries:
                entries[path] = _entry(path)
    return entries


def changes(before: dict[str, Entry], after: dict[str, Entry], *, metadata: bool = True) -> list[str]:
    """Returns a line for each change, `path: what`, sorted.

    Without `metadata`, modes, owners, times and extended attributes are left out, and so is the size of a
    folder itself. Contents, names, sizes of files, inodes and link counts always count.
    """
    lines = []
    for path in before.keys() | after.keys():
        old, new = before.get(path), after.get(path)
        if old is None or new is None:
            lines.append(f"{_shown(path)}: {'appeared' if old is None else 'is gone'}")
        elif old != new:
            lines += [f"{_shown(path)}: {what}" for what in _differences(old, new, metadata)]
    return sorted(lines)


def _below(path: str, left_out: Collection[str]) -> Iterator[str]:
    """A path and all below it."""
    if path in left_out:
        return
    yield path
    if stat.S_ISDIR(os.lstat(path).st_mode):
        for name in sorted(os.listdir(path)):
            yield from _below(os.path.join(path, name), left_out)


def _entry(path: str) -> Entry:
    status = os.lstat(path)
    kind = TYPES[stat.S_IFMT(status.st_mode)]
    return Entry(
        type=kind,
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
        device=status.st_dev,
        inode=status.st_ino,
        nlink=status.st_nlink,
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
        target=os.readlink(path) if kind == "link" else "",
        digest=_digest(path) if kind == "file" else "",
        xattrs=_xattrs(path),
    )


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb", buffering=0) as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        return f"unreadable: {error.errno}"
    return digest.hexdigest()


def _xattrs(path: str) -> tuple[tuple[str, bytes], ...]:
    """All that may be read; a file system without any has none."""
    try:
        names = sorted(os.listxattr(path, follow_symlinks=False))
        return tuple((name, os.getxattr(path, name, follow_symlinks=False)) for name in names)
    except OSError:
        return ()


def _differences(old: Entry, new: Entry, metadata: bool) -> Iterator[str]:
    for field in fields(Entry):
        was, is_now = getattr(old, field.name), getattr(new, field.name)
        of_a_folder = field.name == "size" and old.type == new.type == "folder"
        if was == is_now or (not metadata and (field.name in METADATA or of_a_folder)):
            continue
        if field.name == "digest":
            yield "contents"
        elif field.name == "mode":
            yield f"mode {was:o} -> {is_now:o}"
        else:
            yield f"{field.name} {was!r} -> {is_now!r}"


def _shown(path: str) -> str:
    """A path on one line, whatever bytes are in its name."""
    return os.fsencode(path).decode(errors="backslashreplace").replace("\n", "\\n")
