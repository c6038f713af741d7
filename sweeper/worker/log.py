"""Stores a trial's output in a file of bounded size: its head and its tail, without secrets."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from pathlib import Path

from sweeper.system.secrets import Striker

HEAD_BYTES = 512 * 1024
TAIL_BYTES = 256 * 1024


class BoundedLog:
    """Keeps the first 512 KiB of output and the last 256 KiB of the rest."""

    def __init__(self, path: Path, secrets: Collection[str] = ()) -> None:
        """Opens the file.

        Args:
            secrets: Values to write as `***`, like passwords in URLs.
        """
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115 - closed by close()
        self._striker = Striker(secrets)
        self._room = HEAD_BYTES
        self._tail: deque[bytes] = deque()
        self._tail_bytes = self._left_out = 0

    def write(self, data: bytes) -> None:
        """Adds a piece of output."""
        self._keep(self._striker.take(data))

    def _keep(self, data: bytes) -> None:
        head, rest = data[: self._room], data[self._room :]
        if head:
            self._file.write(head)
            self._room -= len(head)
        if rest:
            self._tail.append(rest)
            self._tail_bytes += len(rest)
            while self._tail_bytes - len(self._tail[0]) >= TAIL_BYTES:
                dropped = len(self._tail.popleft())
                self._tail_bytes -= dropped
                self._left_out += dropped

    def close(self) -> None:
        """Writes the tail, after a line that says how much was left out."""
        self._keep(self._striker.rest())
        if self._left_out:
            self._file.write(f"\n[... {self._left_out} bytes left out ...]\n".encode())
        for piece in self._tail:
            self._file.write(piece)
        self._file.close()


def last_lines(path: Path, count: int = 20, num_bytes: int = 8192) -> str:
    """Returns the last lines of the log, with control characters escaped."""
    with open(path, "rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - num_bytes))
        text = file.read().decode("utf-8", "backslashreplace")
    clean = "".join(c if c in "\n\t" or c.isprintable() else f"\\x{ord(c):02x}" for c in text)
    return "\n".join(clean.rstrip().splitlines()[-count:])
