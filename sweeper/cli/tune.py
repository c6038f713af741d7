"""`sweeper tune`: makes a training script faster without editing it, and verifies that it trains the same."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sweeper.cli.answer_card import card_of, check_files
from sweeper.cli.exit_codes import FAILED, INTERRUPTED, PENDING
from sweeper.cli.options import Epochs, Home, OptionalCommand, PassEnv, Price, Unprotected, Uri, interpret
from sweeper.cli.screen import Screen, console, prose
from sweeper.core.home import DEFAULT_HOME
from sweeper.core.progress import TrialFailedError
from sweeper.errors import UserError
from sweeper.scaffold.example import FOLDER, write_example
from sweeper.system.files import write_atomic
from sweeper.tuning.options import TuneOptions
from sweeper.tuning.tune import Tune

USUAL_MINUTES, EXAMPLE_MINUTES = 5.0, 1.5


def tune(
    command: OptionalCommand = None,
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", metavar="M", min=0.1, help="Time limit for everything. Default: 5."),
    ] = None,
    example: Annotated[
        bool,
        typer.Option("--example", help=f"Write a small training into {FOLDER}/, and tune it for 90 seconds."),
    ] = False,
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
    card: Annotated[
        list[Path] | None,
        typer.Option("--card", metavar="FILE", help="Write the answer as a picture: .svg or .png."),
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option("--export-markdown", metavar="FILE", help="Write the answer for a pull request."),
    ] = None,
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
    check_files(card or [], markdown)
    # The example runs in another folder.
    card, markdown = [path.absolute() for path in card or []], markdown and markdown.absolute()
    out = console()
    if example:
        command = _example(command, out)
    if not command:
        raise UserError("the command of the script is missing: sweeper tune -- python train.py")
    options = TuneOptions.of(
        command,
        minutes=minutes or (EXAMPLE_MINUTES if example else USUAL_MINUTES),
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
    # The script's output goes elsewhere meanwhile.
    out.file = sys.stdout
    try:
        with Screen(out) as screen:
            result = Tune(options, screen).run(dry=dry)
    except TrialFailedError as error:
        prose(out, f"{error.kind}: {error}")
        raise typer.Exit(FAILED) from None
    answer = None if dry else card_of(result, _typed(minutes, changes, with_flags, allow_batch_size))
    if answer is None and (card or markdown):
        prose(out, "No card is written: the tune has no answer.")
    if answer is not None:
        out.print(answer.panel())
        for path in card:
            answer.write(path)
        if markdown is not None:
            write_atomic(markdown, answer.markdown())
    if result.is_stopped:
        raise typer.Exit(INTERRUPTED)
    # Without MLflow, the folder is the record, and nothing is pending here.
    is_pending = bool(result.unsent) and find_spec("mlflow") is not None
    raise typer.Exit(FAILED if result.fault else PENDING if is_pending else 0)


def _typed(minutes: float | None, changes: Path | None, with_flags: bool, allow_batch_size: bool) -> str:
    """Returns the options that decide what a tune tries, as they are typed."""
    words = [f"--minutes {minutes:g}"] if minutes else []
    words += ["--with-flags"] * with_flags + ["--allow-batch-size"] * allow_batch_size
    return " ".join([*words, *([f"--changes {shlex.quote(str(changes))}"] if changes else [])])


def _example(command: list[str] | None, out: Console) -> list[str]:
    """Writes the example, changes to its folder, and returns its command."""
    if command:
        raise UserError("`--example` brings its command. Leave out yours, or the option.")
    path = write_example(Path(FOLDER))
    prose(out, f"{path} reads its rows one at a time, which is too slow on purpose.")
    prose(out, f"To run the commands below, change to {path.parent}/.")
    os.chdir(path.parent)
    return interpret(["python" if shutil.which("python") else sys.executable, path.name]) or []
