"""`sweeper watch`: watches a training script as it is and says why it is not faster."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import typer

from sweeper.cli.exit_codes import FAILED
from sweeper.cli.options import Command, Epochs, Json, PassEnv, Price, Unprotected
from sweeper.cli.screen import LiveScreen, console, print_json, prose, say
from sweeper.core.progress import TrialFailedError
from sweeper.system.environment import script_held_back_line
from sweeper.tuning.watch import watch as watch_script

LAST_LINES = 5


def watch(
    command: Command,
    epochs: Epochs = None,
    price: Price = None,
    unprotected: Unprotected = None,
    pass_env: PassEnv = None,
    as_json: Json = False,
) -> None:
    """Watch an unmodified training script: its speed, the parts of a step, and what limits it.

    Nothing is edited, and the script need not print anything: torch reports its steps. The command
    runs for some seconds: it is timed, then its steps are taken apart. The last lines say where the time
    of the run goes; --epochs and --price make that hours and money of a whole run. Exits with 1 if it
    cannot be measured.

    --json: {"throughput", "step_ms", "windows", "breakdown", "diagnosis", "reported_by", ...}, as in a
    trial's outcome.json

    Example: sweeper watch -- python train.py --epochs 3
    """
    out = console()
    # With --json, standard output is for JSON alone.
    out.file = sys.stderr if as_json else sys.stdout
    if line := script_held_back_line(os.environ):
        prose(out, line)
    descriptor, name = tempfile.mkstemp(prefix="sweeper-watch-", suffix=".log")
    os.close(descriptor)
    log = Path(name)
    try:
        with LiveScreen(out) as screen:
            result = watch_script(command, log, screen.line, progress=not as_json)
    except TrialFailedError as error:
        last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
        say(out, f"{error.kind}: {error}", "\n".join(f"    {line}" for line in last))
        raise typer.Exit(FAILED) from None
    if as_json:
        print_json(result.measurement)
        return
    lines = result.describe(num_epochs=epochs, price=price)
    for line in ["", *lines, f"Its output is in {log}."]:
        prose(out, line)
