"""`sweeper spaces`: lists the search spaces that ship with sweeper."""

from __future__ import annotations

import json

from rich.text import Text

from sweeper.cli.options import Json
from sweeper.cli.screen import console
from sweeper.spec.shipped import shipped_spaces, space_file


def spaces(as_json: Json = False) -> None:
    """List the search spaces that come with sweeper.

    A file of that name in the current folder, or in its search_spaces/, takes precedence.

    --json: [{"name", "about", "file"}], with the file that `sweeper run NAME` reads.

    Example: sweeper spaces
    """
    spaces_command(as_json=as_json)


def spaces_command(*, as_json: bool) -> None:
    """Prints each space and its purpose."""
    spaces = shipped_spaces()
    if as_json:
        found = [
            {"name": name, "about": about, "file": str(space_file(name))} for name, about in spaces.items()
        ]
        print(json.dumps(found, indent=1))
        return
    out = console()
    width = max(map(len, spaces), default=0)
    for name, about in spaces.items():
        out.print(Text(f"{name:<{width}}  {about}"), soft_wrap=True)
    hint = "`sweeper run NAME` runs one; `sweeper init PIPELINE` writes one for this machine."
    out.print(Text(hint), soft_wrap=True)
