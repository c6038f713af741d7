"""Finds search spaces by name: the user's files first, then those that ship with sweeper."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from sweeper.core.modules import shipped_folder
from sweeper.errors import UserError, did_you_mean

FOLDER = "search_spaces"
_SUFFIX = ".yaml"


def shipped_spaces() -> Mapping[str, str]:
    """Returns the purpose of each space that ships with sweeper, by name."""
    files = sorted(shipped_folder(FOLDER).glob(f"*{_SUFFIX}"))
    return {path.stem: _first_comment(path) for path in files}


def space_file(name: str) -> Path:
    """Returns the file for `name`, which is a path or the name of a space.

    A file at that path comes first, then `NAME.yaml` in the current folder and in `search_spaces/`, then
    the space that ships with sweeper.

    Raises:
        UserError: There is neither such a file nor such a space.
    """
    if os.path.isfile(name):
        return Path(name)
    stem = name.removesuffix(_SUFFIX)
    if os.sep not in name:
        for folder in (Path(), Path(FOLDER), shipped_folder(FOLDER)):
            # os.path treats a name that no file can have as one that does not exist.
            if os.path.isfile(path := folder / f"{stem}{_SUFFIX}"):
                return path
    if os.path.lexists(name):
        # Reading the file raises an error with the reason.
        return Path(name)
    hint = did_you_mean(os.path.basename(stem), shipped_spaces())
    raise UserError(
        f"`SPACE` must be a YAML file or the name of a space that ships with sweeper, but got {name!r}."
        f"{hint} `sweeper spaces` lists them."
    )


def _first_comment(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip()
