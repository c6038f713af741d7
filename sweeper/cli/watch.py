"""`sweeper watch`: watches a training script as it is and says why it is not faster."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from sweeper.analysis.formatting import rate, seconds
from sweeper.cli.gpus import gpus_for
from sweeper.cli.options import Command, Json, PassEnv, Unprotected, leave_unprotected
from sweeper.cli.screen import LiveScreen, console, prose
from sweeper.core.codec import encode
from sweeper.core.measurement import Measurement, Window
from sweeper.core.progress import Silent, TrialFailedError
from sweeper.errors import UserError
from sweeper.results.trial_card import card
from sweeper.script.watch import NO_PARAMETERS
from sweeper.script.watch import watch as watch_script
from sweeper.spec.rules import leads_elsewhere
from sweeper.system.environment import script_held_back_line

FAILED = 1
LAST_LINES = 5
_STAGES = {
    "build": "Starting the script.",
    "warmup": "Waiting for steps at a steady speed.",
    "diagnose": "Taking its steps apart, in a second run of the same command.",
}


def watch(
    command: Command,
    in_place: Annotated[
        bool,
        typer.Option("--in-place", hidden=True),
    ] = False,
    unprotected: Unprotected = None,
    pass_env: PassEnv = None,
    as_json: Json = False,
) -> None:
    """Watch an unmodified training script: its speed, the parts of a step, and what limits it.

    Nothing is edited, and the script need not print anything: torch reports its steps. The command
    runs twice for a few seconds: once to time it, once to take its steps apart. Exits with 1 if it
    cannot be measured.

    --json: {"throughput", "step_ms", "windows", "breakdown", "diagnosis", "told_by", ...}, as in a
    trial's outcome.json

    Example: sweeper watch -- python train.py --epochs 3
    """
    if in_place:
        renamed = "`--in-place` is now called `--unprotected`."
        if not sys.stdin.isatty():
            raise UserError(renamed)
        print(renamed, file=sys.stderr)
        leave_unprotected(["."])
    if reason := leads_elsewhere(command):
        raise UserError(f"`sweeper watch` runs the command twice, but {reason}.")
    out = console()
    # The script writes to standard output, which goes to a file meanwhile; with --json, only JSON does.
    out.file = sys.stderr if as_json else sys.stdout
    screen = LiveScreen(out)
    progress = Silent() if as_json else _Shown(screen)
    if line := script_held_back_line(os.environ):
        prose(out, line)
    with tempfile.NamedTemporaryFile("w", prefix="sweeper-watch-", suffix=".log", delete=False) as log:
        try:
            with gpus_for(command, out), screen, contextlib.redirect_stdout(log):
                measurement = watch_script(command, Path.cwd(), progress)
        except TrialFailedError as error:
            out.print(Text(f"{error.kind}: {error}"), soft_wrap=True)
            last = Path(log.name).read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
            out.print(Text("\n".join(f"    {line}" for line in last)), soft_wrap=True)
            raise typer.Exit(FAILED) from None
    if as_json:
        print(json.dumps(encode(measurement), indent=1))
        return
    for line in [*_lines(measurement), f"Its output is in {log.name}."]:
        prose(out, line)


class _Shown(Silent):
    """Prints the stages and windows as they pass."""

    def __init__(self, screen: LiveScreen) -> None:
        super().__init__()
        self._screen = screen

    def stage(self, name: str) -> None:
        """Prints the stage that begins."""
        super().stage(name)
        if name in _STAGES:
            self._screen.line(_STAGES[name])

    def window(self, window: Window) -> Sequence[str]:
        """Prints the speed in a window."""
        step = f", {1e3 * window.seconds / window.steps:.3g} ms per step" if window.steps else ""
        self._screen.line(f"  {rate(window.samples / window.seconds)}{step}")
        return ()


def _lines(measurement: Measurement) -> list[str]:
    """Returns the speed and the card of a script."""
    first = f"{rate(measurement.throughput)}, {measurement.step_ms:.3g} ms per step"
    return [
        "",
        f"{first}; start-up {seconds(measurement.startup_seconds)}.",
        *card(measurement, NO_PARAMETERS),
    ]
