"""`sweeper tune`: makes a training script faster without editing it, and verifies that it trains the same."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sweeper.cli.exit_codes import FAILED, INTERRUPTED, PENDING
from sweeper.cli.options import Command, Epochs, Home, PassEnv, Price, Unprotected, Uri
from sweeper.cli.screen import Screen, console, prose
from sweeper.core.home import DEFAULT_HOME
from sweeper.core.progress import TrialFailedError
from sweeper.tuning.options import TuneOptions
from sweeper.tuning.tune import Tune


def tune(
    command: Command,
    minutes: Annotated[
        float, typer.Option("--minutes", metavar="M", min=0.1, help="Time limit for everything.")
    ] = 5.0,
    with_flags: Annotated[
        bool, typer.Option("--with-flags", help="Then search the script's own options that are recognised.")
    ] = False,
    allow_batch_size: Annotated[
        bool,
        typer.Option("--allow-batch-size", help="Then search larger batches, within a limit on the loss."),
    ] = False,
    allow_other_draws: Annotated[
        bool,
        typer.Option("--allow-other-draws", help="Let more workers augment rows; the random numbers differ."),
    ] = False,
    changes: Annotated[
        Path | None,
        typer.Option("--changes", metavar="FILE.py", help="Your own changes, verified like all others."),
    ] = None,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Show what could be tried, and why; race nothing.")
    ] = False,
    epochs: Epochs = None,
    price: Price = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the sweep. Default: tune-SCRIPT.")
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Start over, under a new name.")] = False,
    unprotected: Unprotected = None,
    pass_env: PassEnv = None,
    home: Home = DEFAULT_HOME,
    uri: Uri = None,
) -> None:
    """Make a training script faster without editing it, and verify that it trains the same.

    Changes are made at run time, to its loaders, its optimizer and its environment. The script and the
    script with changes take turns. The first steps of each process must match those of the original; changes
    that fail are dropped. Ctrl-C hands over the best so far, once a change is shown to be faster. The same
    command continues the tune.
    Exits with 1 if the script cannot be watched, or if the winning changes fail verification together.

    Example: sweeper tune --minutes 5 -- python train.py --epochs 3
    """
    options = TuneOptions.of(
        command,
        minutes=minutes,
        with_flags=with_flags,
        allow_batch_size=allow_batch_size,
        allow_other_draws=allow_other_draws,
        changes=changes,
        epochs=epochs,
        price=price,
        name=name,
        new=new,
        home=home,
        uri=uri,
    )
    out = console()
    # The script's output goes elsewhere meanwhile.
    out.file = sys.stdout
    try:
        with Screen(out) as screen:
            result = Tune(options, screen).run(dry=dry)
    except TrialFailedError as error:
        prose(out, f"{error.kind}: {error}")
        raise typer.Exit(FAILED) from None
    if result.is_stopped:
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(FAILED if result.fault else PENDING if result.unsent else 0)
