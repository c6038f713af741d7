"""The user's data: where `data.path` leads, and the error if nothing is there."""

from __future__ import annotations

import os
from pathlib import Path

from sweeper.errors import UserError


def existing(given: str) -> Path:
    """Returns the file or folder that `data.path` names, `~` expanded.

    Raises:
        UserError: It does not exist.
    """
    # os.path takes a name that no file can have as one that does not exist.
    path = Path(os.path.expanduser(given))
    if not os.path.exists(path):
        raise UserError(
            f"`data.path` must exist, but got {given!r} (looked for {path.absolute()}). "
            "Correct it, or pass `--set data.path=...`."
        )
    return path
