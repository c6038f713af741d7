"""`sweeper report`: writes a sweep's report and prints where it is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sweeper.cli.options import Home, Name
from sweeper.cli.screen import console, say
from sweeper.core.home import DEFAULT_HOME
from sweeper.errors import UserError, did_you_mean
from sweeper.report import FORMATS, text, write
from sweeper.sweep.folder.catalog import find_sweep
from sweeper.sweep.folder.load import load_sweep
from sweeper.system.files import STDOUT, check_out, writing


def report(
    name: Name,
    home: Home = DEFAULT_HOME,
    form: Annotated[
        str, typer.Option("--format", help="html (one page), md (a summary), png (figures).")
    ] = "html",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Output file, `-` to print, or a folder for png. Default: in the sweep's folder."
        ),
    ] = None,
) -> None:
    """Write a sweep's report as HTML, Markdown or PNG figures.

    The HTML page is self-contained: it needs no network.

    Example: sweeper report stocks-a10 --format md --out summary.md
    """
    if form not in FORMATS:
        raise UserError(
            f"`--format` must be one of {', '.join(FORMATS)}, but got {form!r}.{did_you_mean(form, FORMATS)}"
        )
    sweep = load_sweep(find_sweep(home, name))
    if out == STDOUT and form != "png":
        sys.stdout.write(text(sweep, form))
        return
    if out is not None and form == "png" and (out == STDOUT or (out.exists() and not out.is_dir())):
        what = "standard output" if out == STDOUT else f"the file {str(out)!r}"
        raise UserError(f"`--out` must be a folder for `--format png`, but got {what}.")
    if out is not None and form != "png":
        check_out(out)
    with writing(out.parent if out else sweep.journal.folder):
        written = write(sweep, form, out)
    lines = [f"Written to {path}." for path in written]
    say(console(), *(lines or ["Nothing to draw yet: no trial has finished."]))
