"""Draws what a command prints: python docs/images/terminal.py docs/images/tune.svg -- sweeper tune -- ..."""

import shlex
import subprocess
import sys

from rich.console import Console
from rich.text import Text

WIDTH = 110
LIVE = "  ("
"""Begins the lines that a terminal shows in place, and a file below each other."""


def main() -> None:
    """Runs the command, and writes the picture."""
    path, mark, *command = sys.argv[1:]
    assert mark == "--", __doc__
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    console = Console(record=True, width=WIDTH, highlight=False)
    console.print(Text(f"$ {shlex.join(command)}", style="bold"))
    for line in printed.splitlines():
        if not line.startswith(LIVE):
            console.print(Text(line))
    console.save_svg(path, title="sweeper")


if __name__ == "__main__":
    main()
