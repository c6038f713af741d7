"""The `sweeper` command, and `python -m sweeper`: signals are taken before anything else is imported."""

from __future__ import annotations

from typing import NoReturn

from sweeper.cli import ending
from sweeper.cli import main as command_line


def main() -> NoReturn:
    """Runs the command line as all of this process."""
    ending.run(command_line)


if __name__ == "__main__":
    main()
