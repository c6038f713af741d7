"""The command line: parse, call, print; nothing else."""

from __future__ import annotations

from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Runs the command line; takes no signals (`sweeper.__main__` does)."""
    # Not before: importing the commands takes longer than a person to press Ctrl-C.
    from sweeper.cli.app import main as run

    run()
