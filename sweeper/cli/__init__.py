"""Implements the command line: one module per command, which parses, calls and prints."""

from __future__ import annotations

from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Runs the command line without handling signals (`sweeper.__main__` does)."""
    # Imported late: the import takes long enough for the user to press Ctrl-C.
    from sweeper.cli.app import main as run

    run()
