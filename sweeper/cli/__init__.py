"""The command line: one module per command that parses, calls and prints."""

from __future__ import annotations

from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Runs the command line; takes no signals (`sweeper.__main__` does)."""
    # Not before: importing the commands takes longer than a person to press Ctrl-C.
    from sweeper.cli.app import main as run

    run()
