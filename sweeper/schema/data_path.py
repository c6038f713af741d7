"""Finds the user's data at `data.path`, or raises an error if nothing is there."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sweeper.errors import UserError
from sweeper.system.remote_data import is_remote, local_copy


def existing_path(given: str) -> Path:
    """Returns the file or folder that `data.path` names, `~` expanded.

    Raises:
        UserError: It does not exist.
    """
    # os.path treats a name that no file can have as one that does not exist.
    path = Path(os.path.expanduser(given))
    if not os.path.exists(path):
        raise UserError(
            f"`data.path` must exist, but got {given!r} (looked for {path.absolute()}). "
            "Correct it, or pass `--set data.path=...`."
        )
    return path


def on_this_machine(data: Mapping[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """Returns a data section whose `path` is on this machine: remote data is copied once, `~` expanded.

    Args:
        say: Function that receives lines for the user.

    Raises:
        UserError: The data cannot be copied.
    """
    path = str(data.get("path") or "")
    if not path:
        return dict(data)
    return {**data, "path": str(local_copy(path, say)) if is_remote(path) else os.path.expanduser(path)}
