"""Stores the speeds that all sweeps of a home have measured on a machine, in `machines/<id>.json`."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweeper.core.codec import decode, encode
from sweeper.core.config import TrialConfig
from sweeper.race.drift import Block, Drift, drift
from sweeper.system.files import write_json
from sweeper.system.flock import open_locked

FOLDER = "machines"
MAX_BLOCKS = 500
"""Number of latest blocks that are stored; earlier ones are out of date."""
OF_SEARCH = frozenset({"space", "fix", "baseline", "also_try", "objectives", "constraints", "seed"})
"""Parts of a fingerprint that do not decide how fast a configuration is."""


def speed_key(fingerprint: Mapping[str, Any], config: TrialConfig) -> str:
    """Returns the key of a speed in the record: a digest of all that determines it, except the machine.

    Args:
        fingerprint: The sweep's fingerprint; its parts about the search do not count.
        config: The configuration that has the speed.
    """
    parts = [{name: part for name, part in fingerprint.items() if name not in OF_SEARCH}, config.key()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


class MachineRecord:
    """The record of one machine.

    Args:
        line: The machine in words: processors, cores, GPUs.
        node: Its host name; this machine's by default.
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
            return [decode(Block, block) for block in tree["blocks"]]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def drift(self, before: str) -> Drift:
        """Returns how far its speeds drift, without the caller's rounds.

        A sweep that was cut off after it added its rounds thus decides the same when it continues.

        Args:
            before: Identifier (`Block.of`) of the rounds that do not count.
        """
        return drift([block for block in self.blocks() if block.of != before])

    def add(self, block: Block) -> None:
        """Adds a block, or replaces that of the same rounds. A block without speeds is ignored."""
        if not block.speeds:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open_locked(self._path.with_suffix(".lock")):
            others = [other for other in self.blocks() if other.of != block.of]
            blocks = [*others, block][-MAX_BLOCKS:]
            write_json(self._path, {"machine": self._line, "blocks": list(map(encode, blocks))})
