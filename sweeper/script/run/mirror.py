"""Makes a mirror of the user's folder: folders of links, in which only code is copied.

A link becomes a copy, or a folder of links, when something is first written there (`script.run.copy_up`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import stat
import tempfile
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sweeper.errors import UserError

CODE = (".py", ".sh", ".ipynb")
"""Endings of files that are copied: they ask where they are, and write beside themselves."""
DATABASES = (".db", ".sqlite", ".sqlite3", "-wal", "-journal")
"""Endings of files that SQLite opens; it follows links by itself, so they are copied, too."""
COPIED_BYTES = 64 * 2**20
"""Larger files are linked, whatever they are."""

MAX_DEPTH = 5
"""Number of folders, from a script's own upwards, that may be the top of a repository without git."""
MARKS = (
    "LICENSE",
    "LICENSE.txt",
    "LICENSE.md",
    "pyproject.toml",
    "setup.py",
    "setup.cfg",
    "requirements.txt",
)
"""Files at the top of a repository."""
MAX_ENTRIES = 1000
"""A folder with more entries below it is data and linked as a whole, unless code is among the first."""
MAX_MADE, MAX_COPIED = 600, 150
"""Numbers of entries and of files of code in a mirror, the upper folders first, after which all is linked."""
MAX_SURVEYED = 20_000
"""Entries that are looked at to find the folders of code."""
MAX_OPENED = 200_000
"""A folder with more entries does not become a folder of links."""
LINKED = frozenset({".git", ".hg", ".svn", "__pycache__", "node_modules"})
"""Folders that are linked as a whole, however small."""

MAX_COPY_BYTES, MAX_COPY_FILES = 2**30, 20_000
"""Bounds of a mirror that consists of copies."""

_EXCHANGE, _CURRENT = 2, -100
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True)
class Mirror:
    """A mirror of a folder and of what is around it.

    Attributes:
        root: The folder that holds it, resolved; what the user's folder is among is linked here.
        top: The user's repository, or the folder itself if it is in none, resolved.
        folder: The mirror of the user's folder.
        opened: Files and folders of the user's, resolved, that are not linked though they would be.
        linked: Files and folders of the user's, resolved, that are linked in any case.
        home: The mirror of the user's home folder; None if there is none.
    """

    root: Path
    top: Path
    folder: Path
    opened: Collection[Path] = ()
    linked: Collection[Path] = ()
    home: Path | None = None
    _num_made: int = field(default=0, init=False)
    _num_copied: int = field(default=0, init=False)
    _surveyed: int = field(default=0, init=False)

    @property
    def mirrored_top(self) -> Path:
        """The mirror of `top`."""
        return self.root / self.top.name

    def translate(self, path: Path) -> Path:
        """Returns a path with a place below the user's repository replaced by the one in the mirror."""
        return self.mirrored_top / path.relative_to(self.top) if path.is_relative_to(self.top) else path

    def has_link_to(self, path: Path) -> bool:
        """Returns whether one of the user's files or folders on the way to `path` is a link here."""
        if not path.is_relative_to(self.top.parent):
            return False
        parts = path.relative_to(self.top.parent).parts
        return any(self.root.joinpath(*parts[: i + 1]).is_symlink() for i in range(len(parts)))

    def open_folder(self, link: str) -> bool:
        """Replaces a link to a folder by a folder of links; returns whether it was possible."""
        making = tempfile.mkdtemp(prefix=".making-", dir=self._place_for_copies(link))
        try:
            if not self._link_entries(os.path.realpath(link), making):
                return False
            # At no time is there neither of them, except on file systems that cannot exchange.
            if _libc.renameat2(_CURRENT, os.fsencode(making), _CURRENT, os.fsencode(link), _EXCHANGE):
                os.unlink(link)
                os.rename(making, link)
        except OSError:
            # For example, the disk is full.
            return False
        finally:
            # What is left is the link, or what was not completed.
            _discard(making)
        return True

    def _link_entries(self, source: str, target: str) -> bool:
        """Fills a folder with links to the entries of another; returns whether they are few enough."""
        is_repository = os.path.basename(source) == ".git"
        with os.scandir(source) as entries:
            for count, entry in enumerate(entries):
                if count >= MAX_OPENED:
                    return False
                # Git takes a HEAD that is a link for a broken one.
                if is_repository and entry.is_file():
                    shutil.copy2(entry.path, f"{target}/{entry.name}")
                else:
                    os.symlink(os.path.realpath(entry.path), f"{target}/{entry.name}")
        _copy_mode(source, target)
        return True

    def copy_file(self, link: str, *, empty: bool = False) -> bool:
        """Replaces a link to a file by a copy of it; returns whether there was room.

        Args:
            empty: Whether the copy has no content, since it is about to be truncated.
        """
        source, folder = os.path.realpath(link), self._place_for_copies(link)
        room = os.statvfs(folder)
        if not empty and os.stat(source).st_size > 0.9 * room.f_bavail * room.f_frsize:
            return False
        descriptor, making = tempfile.mkstemp(prefix=".making-", dir=folder)
        os.close(descriptor)
        try:
            if not empty:
                shutil.copyfile(source, making)
            shutil.copystat(source, making)
            os.replace(making, link)
        except OSError:
            return False
        finally:
            _discard(making)
        return True

    def _place_for_copies(self, link: str) -> str:
        """Returns a folder on the same file system, if possible one that the script does not list."""
        return str(self.root) if Path(link).is_relative_to(self.root) else os.path.dirname(link)

    def add_home(self, home: Path) -> None:
        """Makes a mirror of the user's home folder, in which the repository leads to its mirror.

        Args:
            home: The folder, resolved.
        """
        if home == self.top:
            self.home = self.mirrored_top
            return
        paths = list(_list_entries(home))
        place = self.root.with_name(f"{self.root.name}.home")
        remove_tree(place)
        place.mkdir()
        for path in paths:
            (place / path.name).symlink_to(os.path.realpath(path))
        if self.top.is_relative_to(home):
            folder = place
            *parts, name = self.top.relative_to(home).parts
            for part in parts:
                folder = folder / part
                if not folder.is_symlink() or not self.open_folder(str(folder)):
                    return
            # Only where all above is in the mirror, or the user's own folder would be changed.
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(self.mirrored_top)
        self.home = place if paths else None

    def fill(self, source: Path, target: Path, *, copies: bool = False, has_code: bool = True) -> None:
        """Makes the entries of a folder, and of the folders in it, in its mirror.

        Args:
            copies: Whether everything is copied, whatever it is.
            has_code: Whether there may be code in its folders.
        """
        # The upper folders come first.
        folders = deque((*pair, has_code) for pair in self._fill_files(source, target, copies=copies))
        while folders:
            folder, copy, may_have_code = folders.popleft()
            is_of_code = self._opens(folder, copies=copies, has_code=may_have_code)
            if is_of_code is None:
                copy.symlink_to(folder)
                continue
            copy.mkdir()
            _copy_mode(str(folder), str(copy), 0o700)
            # In what is only opened since it was written before, no code is looked for.
            folders.extend((*pair, is_of_code) for pair in self._fill_files(folder, copy, copies=copies))

    def _fill_files(self, source: Path, target: Path, *, copies: bool) -> Iterator[tuple[Path, Path]]:
        """Makes the files of a folder in its mirror; yields its folders and their places in the mirror."""
        with os.scandir(source) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
        for entry in entries:
            # The sweep's own folder may lie in the user's.
            if f"{self.root}/".startswith(f"{entry.path}/"):
                continue
            copy = target / entry.name
            # The user's editor or another training may have removed it meanwhile.
            with contextlib.suppress(FileNotFoundError):
                self._num_made += 1
                if entry.is_dir(follow_symlinks=False) and not self._is_linked(entry):
                    yield Path(entry.path), copy
                else:
                    self._add(entry, copy, copies=copies)

    def _is_linked(self, entry: os.DirEntry[str]) -> bool:
        """Returns whether an entry is a link in any case, as what the script may not read."""
        return (bool(self.linked) and Path(entry.path) in self.linked) or _is_denied(entry)

    def _opens(self, folder: Path, *, copies: bool, has_code: bool) -> bool | None:
        """Returns whether there is code in a folder; None if it becomes a link."""
        if copies and not _is_environment(folder):
            return True
        if has_code and folder.name not in LINKED and self._num_made < MAX_MADE and self._is_of_code(folder):
            return True
        return False if self._is_opened(folder) else None

    def _add(self, entry: os.DirEntry[str], copy: Path, *, copies: bool) -> None:
        if entry.is_symlink():
            copy.symlink_to(self._target(Path(entry.path)))
        elif entry.is_dir() or (entry.is_file() and self._is_linked(entry)):
            copy.symlink_to(entry.path)
        elif entry.is_file() and (copies or self._is_copied(entry)):
            shutil.copy2(entry.path, copy)
        elif entry.is_file():
            copy.symlink_to(entry.path)

    def _is_copied(self, entry: os.DirEntry[str]) -> bool:
        """Returns whether a file was written before, or is code or a database and not too much was copied."""
        # Git takes a HEAD that is a link for a broken one.
        if os.path.basename(os.path.dirname(entry.path)) == ".git" or Path(entry.path) in self.opened:
            return True
        if self._num_copied >= MAX_COPIED or not _is_code(entry):
            return False
        self._num_copied += 1
        return True

    def add_around(self, path: Path, copy: Path) -> None:
        """Adds what is beside the user's folder: as a link, unless it has been written before."""
        if not path.is_symlink() and path.is_dir() and self._is_opened(path):
            copy.mkdir()
            self.fill(path, copy, has_code=False)
        else:
            copy.symlink_to(self._target(path) if path.is_symlink() else path)

    def _is_opened(self, folder: Path) -> bool:
        return any(path.is_relative_to(folder) for path in self.opened)

    def _is_of_code(self, folder: Path) -> bool:
        """Returns whether a folder is small, or code is among the first entries below it."""
        if _is_environment(folder):
            return False
        folders, seen, has_code = [str(folder)], 0, False
        while folders and seen <= MAX_ENTRIES and not has_code:
            if self._surveyed >= MAX_SURVEYED:
                return False
            with contextlib.suppress(OSError), os.scandir(folders.pop(0)) as entries:
                for entry in entries:
                    seen, self._surveyed = seen + 1, self._surveyed + 1
                    has_code = has_code or entry.name.endswith(CODE)
                    if seen > MAX_ENTRIES or has_code:
                        break
                    if entry.is_dir(follow_symlinks=False) and entry.name not in LINKED:
                        folders.append(entry.path)
        return has_code or seen <= MAX_ENTRIES

    def _target(self, path: Path) -> Path:
        """Returns where the mirror of a link leads: into the mirror if the user's stays in the repository."""
        # `Path.resolve` raises for a link that leads to itself.
        target, place = Path(os.readlink(path)), Path(os.path.realpath(path))
        if place.is_relative_to(self.top.parent) and self._is_opened(place):
            return self.root / place.relative_to(self.top.parent)
        is_inside = place.is_relative_to(self.top) and not self.root.is_relative_to(place)
        return target if is_inside and not target.is_absolute() else place

    def remove(self) -> None:
        """Removes it, read-only folders included; links are not followed."""
        remove_tree(self.root)
        remove_tree(self.root.with_name(f"{self.root.name}.home"))


def make_mirror(
    source: Path,
    place: Path,
    *,
    copies: bool = False,
    opened: Collection[Path] = (),
    linked: Collection[Path] = (),
) -> Mirror:
    """Returns a mirror of `source`, made anew below `place`, among links to what surrounds `source`.

    Many scripts read `../data`, or other files of their repository.

    Args:
        copies: Whether everything in the folder is copied.
        opened: Files and folders of the user's, resolved, that are not linked.
        linked: Files and folders of the user's, resolved, that are linked in any case.
    """
    remove_tree(place)
    place.mkdir(parents=True)
    source, root = source.resolve(), place.resolve()
    top = repository_of(source)
    mirror = Mirror(root, top, root / source.relative_to(top.parent), opened, linked)
    around, folder = top.parent, root
    for part in source.relative_to(around).parts:
        for path in _list_entries(around):
            if path.name != part and not root.is_relative_to(path):
                mirror.add_around(path, folder / path.name)
        around, folder = around / part, folder / part
        folder.mkdir()
    mirror.fill(source, folder, copies=copies)
    return mirror


def check_size(folder: Path, linked: Collection[Path]) -> None:
    """Checks that a folder is small enough to be copied for each run.

    Args:
        linked: What is not copied.

    Raises:
        UserError: It is not.
    """
    num_files = num_bytes = 0
    for name, folders, files in os.walk(folder):
        inside = [Path(name, inner) for inner in folders]
        folders[:] = [path.name for path in inside if path not in linked and not _is_environment(path)]
        for file in files:
            with contextlib.suppress(OSError):
                status = os.lstat(os.path.join(name, file))
                num_files, num_bytes = (
                    num_files + 1,
                    num_bytes + status.st_size * stat.S_ISREG(status.st_mode),
                )
        if num_files > MAX_COPY_FILES or num_bytes > MAX_COPY_BYTES:
            raise UserError(
                f"A folder is copied for each run, since this kernel does not let sweeper guard it, but"
                f" {str(folder)!r} has more than {MAX_COPY_BYTES // 2**20:,} MiB or {MAX_COPY_FILES:,} files."
                " Name folders that the script only reads, or may write to, with `--unprotected PATH`."
            )


def repository_of(folder: Path) -> Path:
    """Returns the repository that a folder lies in; without one, the folder itself.

    One that was downloaded without git has a license, or says what it needs, at its top.
    """
    home = Path(os.path.expanduser("~"))
    # A home folder under version control is not what a script belongs to.
    above = [path for path in (folder, *folder.parents) if path != home]
    if (repository := next((path for path in above if (path / ".git").exists()), None)) is not None:
        return repository
    near = [path for path in above[:MAX_DEPTH] if not home.is_relative_to(path)]
    return next((path for path in reversed(near) if any((path / name).is_file() for name in MARKS)), folder)


def leads_out(arguments: Sequence[str], folder: Path) -> str:
    """Returns an argument whose relative path leads to something not around the mirror; empty if none."""
    source = folder.resolve()
    depth = len(source.relative_to(repository_of(source).parent).parts)
    for argument in arguments:
        path = argument.partition("=")[2] or argument
        parts = os.path.normpath(path).split("/")
        if parts[: depth + 1] == [".."] * (depth + 1) and (folder / path).exists():
            return argument
    return ""


def remove_tree(folder: Path) -> None:
    """Removes a folder as far as possible, read-only folders in it included."""

    def make_writable(_: object, path: str, error: BaseException | object) -> None:
        with contextlib.suppress(OSError):
            os.chmod(os.path.dirname(path), 0o700)
            if os.path.isdir(path) and not os.path.islink(path):
                os.chmod(path, 0o700)
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)

    if os.path.lexists(folder):
        shutil.rmtree(folder, onerror=make_writable)


def _discard(making: str) -> None:
    """Removes a file, a link, or a folder of links, if it is there."""
    if os.path.isdir(making) and not os.path.islink(making):
        remove_tree(Path(making))
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(making)


def _list_entries(folder: Path) -> Iterator[Path]:
    """Yields the entries of a folder, unless it is data or cannot be listed."""
    # Folders above a home directory often cannot be listed.
    with contextlib.suppress(PermissionError), os.scandir(folder) as listing:
        entries = [Path(entry.path) for _, entry in zip(range(MAX_ENTRIES), listing, strict=False)]
        if len(entries) < MAX_ENTRIES:
            yield from entries


def _is_denied(entry: os.DirEntry[str]) -> bool:
    """Returns whether a file or a folder is there, but may not be read."""
    mode = os.R_OK | os.X_OK if entry.is_dir() else os.R_OK
    return not os.access(entry.path, mode) and os.path.exists(entry.path)


def _is_environment(folder: Path) -> bool:
    """Returns whether a folder is a virtual environment of Python."""
    return (folder / "pyvenv.cfg").exists()


def _is_code(entry: os.DirEntry[str]) -> bool:
    status = entry.stat()
    is_program = status.st_mode & stat.S_IXUSR and status.st_size <= 2**20
    return status.st_size <= COPIED_BYTES and (entry.name.endswith(CODE + DATABASES) or bool(is_program))


def _copy_mode(source: str, target: str, also: int = 0) -> None:
    """Gives a mirrored folder the mode of the user's, and no right to write that the user does not have.

    Args:
        also: Rights that it has in any case.
    """
    mode = stat.S_IMODE(os.stat(source).st_mode)
    os.chmod(target, (mode if os.access(source, os.W_OK) else mode & ~0o222) | also)
