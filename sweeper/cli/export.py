"""`sweeper export`: writes the winner, or another trial, in a format for production."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sweeper.cli.options import Home, Name
from sweeper.cli.screen import console, say
from sweeper.core import export_formats
from sweeper.core.home import DEFAULT_HOME
from sweeper.errors import UserError
from sweeper.production.handover import hand_over
from sweeper.system.files import STDOUT

PATCH = "patch"
"""A format that is not rendered from an export: it is made and verified with the user's own files."""


def export(
    name: Name,
    home: Home = DEFAULT_HOME,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help=f"{export_formats.describe_formats()}, {PATCH} (a tune's changes in your own files).",
        ),
    ] = export_formats.YAML,
    trial: Annotated[
        int | None, typer.Option("--trial", metavar="N", help="Export this trial instead of the winner.")
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            "--rule",
            help="With several objectives: `knee` or `lowest_loss` picks the trial from the front.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Output file, or `-` to print. Default: the sweep's best.yaml; "
            f"{' and '.join(export_formats.printed_formats())} are printed.",
        ),
    ] = None,
    flags: Annotated[
        Path | None,
        typer.Option(
            "--map",
            metavar="FILE.yaml",
            help="With --format args: your own flags, such as `batch_size: --bs`.",
        ),
    ] = None,
) -> None:
    """Export the winning configuration for production.

    The file records where the configuration comes from and what it reached.

    Example: sweeper export stocks-a10 --format json --out best.json
    """
    if form == PATCH:
        if trial is not None or flags is not None or rule is not None:
            raise UserError(f"`--format {PATCH}` takes no `--trial`, `--map` or `--rule`. Leave them out.")
        # Imported late: libcst is slow to import.
        from sweeper.cli.patch_script import write_patch

        write_patch(home, name, out)
        return
    handover = hand_over(home, name, form, trial=trial, out=out, flags=flags, rule=rule)
    if handover.path == STDOUT:
        sys.stdout.write(handover.text)
    say(console(), *(f"Written to {path}." for path in handover.write()))
