"""Stores what all sweeps of a home know of a machine: `machines/<id>.json`."""

from __future__ import annotations

import fcntl
import hashlib
import json
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sweeper.analysis.confirmation import Drift
from sweeper.analysis.drift import Block, drift
from sweeper.core.codec import decode, encode
from sweeper.core.config import TrialConfig
from sweeper.system.files import write_json

FOLDER = "machines"
MAX_BLOCKS = 500
"""The latest ones; earlier ones tell of another season."""


def speed_key(fingerprint: Mapping[str, Any], config: TrialConfig) -> str:
    """Returns what a speed is known by on a machine.

    Args:
        fingerprint: Of the sweep: its code, its data.
    """
    parts = [fingerprint, config.key()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


class MachineRecord:
    """The record of one machine.

    Args:
        line: What it is, in words: processors, cores, GPUs.
        node: Its name.
    """

    def __init__(self, home: Path, line: str, node: str = "") -> None:
        node = node or platform.node()
        self._line = line
        key = hashlib.sha256(f"{node}\n{line}".encode()).hexdigest()[:12]
        self._path = home / FOLDER / f"{key}.json"

    def blocks(self) -> list[Block]:
        """Returns the measurements so far; none if the file cannot be read."""
        try:
            tree = json.loads(self._path.read_text(encoding="utf-8"))
            return [decode(Block, each) for each in tree["blocks"]]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def drift(self, before: str) -> Drift:
        """Returns how far its speeds drift; cut off, and continued, a sweep decides the same.

        Args:
            before: Rounds that do not count, though they may have been added.
        """
        return drift([each for each in self.blocks() if each.of != before])

    def add(self, block: Block) -> None:
        """Adds a measurement, or puts it in the place of the same rounds' earlier one."""
        with self._locked():
            if not block.speeds:
                return
            known = [each for each in self.blocks() if each.of != block.of]
            blocks = [*known, block][-MAX_BLOCKS:]
            write_json(self._path, {"machine": self._line, "blocks": [encode(each) for each in blocks]})

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_suffix(".lock").open("w", encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
