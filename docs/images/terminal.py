"""Draws what a command prints: python docs/images/terminal.py docs/images/tune.svg -- sweeper tune -- ..."""

import os
import re
import shlex
import subprocess
import sys

from rich.console import Console
from rich.text import Text

WIDTH = 110
LIVE = "  ("
"""Begins the lines that a terminal shows in place, and a file below each other."""
FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""The reader's own fonts will do."""


def main() -> None:
    """Runs the command, and writes the picture."""
    path, mark, *command = sys.argv[1:]
    assert mark == "--", __doc__
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    printed = printed.replace(f"{os.getcwd()}/", "")
    console = Console(record=True, width=WIDTH, highlight=False)
    console.print(Text(f"$ {shlex.join(command)}", style="bold"))
    for line in printed.splitlines():
        if not line.startswith(LIVE):
            console.print(Text(line))
    picture = FONTS.sub("", console.export_svg(title="sweeper"))
    with open(path, "w", encoding="utf-8") as file:
        file.write(picture)


if __name__ == "__main__":
    main()
