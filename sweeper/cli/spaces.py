"""`sweeper spaces`: lists the search spaces that ship with sweeper."""

from __future__ import annotations

from sweeper.cli.options import Json
from sweeper.cli.screen import console, print_json, say
from sweeper.schema.shipped import shipped_spaces, space_file


def spaces(as_json: Json = False) -> None:
    """List the search spaces that come with sweeper.

    A file of that name in the current folder, or in its search_spaces/, takes precedence.

    --json: [{"name", "about", "file"}], with the file that `sweeper run NAME` reads.

    Example: sweeper spaces
    """
    descriptions = shipped_spaces()
    if as_json:
        print_json(
            [{"name": n, "about": about, "file": str(space_file(n))} for n, about in descriptions.items()]
        )
        return
    width = max(map(len, descriptions), default=0)
    hint = "`sweeper run NAME` runs one; `sweeper init PIPELINE` writes one for this machine."
    say(console(), *(f"{name:<{width}}  {about}" for name, about in descriptions.items()), hint)
