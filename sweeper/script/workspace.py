"""Makes a script's workspace: a mirror of the user's folder per trial, so that outputs do not collide."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeper.core.config import Scalar
from sweeper.core.script import Script
from sweeper.core.template import render
from sweeper.errors import UserError

COPIED_BYTES = 1024 * 1024
"""Files up to this size (code, configurations, small results) are copied; larger ones are linked."""

MAX_ENTRIES = 2000
"""A folder with more entries counts as data and is linked as a whole."""

LEFT_OUT = frozenset(
    {".git", ".hg", ".svn", ".venv", "venv", "node_modules", "mlruns", "wandb"}
    | {"__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints"}
)


@dataclass(slots=True)
class Workspace:
    """The working directory of one trial.

    Attributes:
        folder: Folder that the script runs in.
    """

    folder: Path
    mirror_root: Path | None
    links: dict[Path, int] = field(default_factory=dict)

    def overwritten(self) -> list[Path]:
        """Returns the user's files that the script has changed through a link."""
        return [path for path, changed_ns in self.links.items() if _changed_ns(path) != changed_ns]

    def observed(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the facts of a training, with places in the mirror relative to the folder that it runs in.

        Args:
            facts: What torch reports (`sweeper.inject.facts`); its places are absolute.
        """
        root, folder = (self.mirror_root or self.folder).resolve(), self.folder.resolve()
        places = {
            name: os.path.relpath(place, folder) if Path(place).is_relative_to(root) else place
            for name, place in facts.get("places", {}).items()
        }
        return {**facts, "places": places} if places else dict(facts)

    def remove(self) -> None:
        """Removes the mirror; links are not followed."""
        if self.mirror_root is not None:
            shutil.rmtree(self.mirror_root, ignore_errors=True)


def make(script: Script, values: dict[str, Scalar], place: Path) -> Workspace:
    """Returns a working directory with the script's files written.

    Args:
        place: Folder below which a mirror is made, next to links to what surrounds the script's folder.

    Raises:
        UserError: A file cannot be written there.
    """
    source = Path(script.folder)
    if script.workdir == "here":
        found = Workspace(source, None)
    else:
        shutil.rmtree(place, ignore_errors=True)
        source, own = source.resolve(), place.resolve()
        found = Workspace(_linked_around(source, place, own), place)
        _mirror(found, source, found.folder, own, source, copies=script.workdir == "copy")
    for path, text in script.files.items():
        target = found.folder / path
        if found.mirror_root is not None and not target.parent.resolve().is_relative_to(
            found.folder.resolve()
        ):
            raise UserError(
                f"`script.files` must be below the script's folder, but {path!r} leads through a link to"
                f" {str(target.parent.resolve())!r}. Write it elsewhere."
            )
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            # A link is removed first, so that the user's own file is not overwritten.
            if target.is_symlink():
                target.unlink()
            target.write_text(render(text, values), encoding="utf-8")
        except OSError as error:
            raise UserError(
                f"`script.files` must be writable, but {path!r} is not ({error.strerror})."
            ) from None
    return found


def _linked_around(source: Path, place: Path, own: Path) -> Path:
    """Makes a folder below `place` for the mirror of `source`, among links to what surrounds `source`.

    Many scripts read `../data`, or other files of their repository.
    """
    around, folder = _around(source), place
    folder.mkdir(parents=True)
    for part in source.relative_to(around).parts:
        for path in _few(around):
            if path.name != part and path.name not in LEFT_OUT and not own.is_relative_to(path):
                (folder / path.name).symlink_to(path)
        around, folder = around / part, folder / part
        folder.mkdir()
    return folder


def _few(folder: Path) -> Iterator[Path]:
    """Yields the entries of a folder, unless it is data or cannot be listed."""
    # Folders above a home directory often cannot be listed.
    with contextlib.suppress(PermissionError):
        if not _is_data(folder):
            yield from folder.iterdir()


def _around(source: Path) -> Path:
    """Returns the folder in which the repository of `source` lies; without one, that of `source`."""
    repository = next((each for each in (source, *source.parents) if (each / ".git").exists()), source)
    return repository.parent


def _mirror(found: Workspace, source: Path, target: Path, own: Path, top: Path, *, copies: bool) -> None:
    with os.scandir(source) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
    for entry in entries:
        path, copy = Path(entry.path), target / entry.name
        # The sweep's own folder may lie in the user's.
        if entry.name in LEFT_OUT or own.is_relative_to(path) or os.path.exists(path / "pyvenv.cfg"):
            continue
        # The user's editor or another training may have removed it meanwhile.
        with contextlib.suppress(FileNotFoundError):
            if entry.is_symlink():
                copy.symlink_to(_link(path, top))
            elif _is_denied(entry):
                # The script must not read it in the user's folder, either.
                copy.symlink_to(path)
            elif entry.is_dir():
                if not copies and _is_data(path):
                    copy.symlink_to(path)
                else:
                    copy.mkdir()
                    _mirror(found, path, copy, own, top, copies=copies)
            elif entry.is_file():
                if copies or entry.stat().st_size <= COPIED_BYTES:
                    shutil.copy2(path, copy)
                else:
                    copy.symlink_to(path)
                    found.links[path] = _changed_ns(path)


def _is_denied(entry: os.DirEntry[str]) -> bool:
    """Returns whether a file or a folder is there, but may not be read."""
    mode = os.R_OK | os.X_OK if entry.is_dir() else os.R_OK
    return not os.access(entry.path, mode) and os.path.exists(entry.path)


def _link(path: Path, top: Path) -> Path:
    """Returns where the mirror's link leads: inside the mirror if the user's stays inside of `top`."""
    # `Path.resolve` raises for a link that leads to itself.
    to, leads = Path(os.readlink(path)), Path(os.path.realpath(path))
    is_inside = leads.is_relative_to(top) and LEFT_OUT.isdisjoint(leads.relative_to(top).parts)
    return to if is_inside and not to.is_absolute() else leads


def _is_data(folder: Path) -> bool:
    with os.scandir(folder) as listing:
        return any(count >= MAX_ENTRIES for count, _ in enumerate(listing))


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def leads_out(arguments: list[str], folder: Path) -> str:
    """Returns an argument whose relative path leads to something not around the mirror; empty if none."""
    depth = len(folder.resolve().relative_to(_around(folder.resolve())).parts)
    for argument in arguments:
        path = argument.partition("=")[2] or argument
        parts = os.path.normpath(path).split("/")
        is_beyond = parts[: depth + 1] == [".."] * (depth + 1)
        is_left_out = parts[0] == ".." and not LEFT_OUT.isdisjoint(parts)
        if (is_beyond or is_left_out) and (folder / path).exists():
            return argument
    return ""
