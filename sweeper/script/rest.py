"""Asks a script's training to rest between two steps (`sweeper.inject.rest`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from sweeper.inject.rest import VARIABLE


class RestRequest:
    """A file of one byte, which the script's processes have mapped."""

    def __init__(self, path: Path) -> None:
        """Makes the file; nothing is asked for yet."""
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.end()

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variable by which the script's processes find the file."""
        return {VARIABLE: str(self._path)}

    def begin(self) -> None:
        """Asks the training to rest."""
        os.pwrite(self._descriptor, b"\1", 0)

    def end(self) -> None:
        """Lets it go on."""
        os.pwrite(self._descriptor, b"\0", 0)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)
