"""`sweeper train`: trains with an exported configuration and checks the promised speed."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from sweeper.cli import signals
from sweeper.cli.exec import environment
from sweeper.cli.exit_codes import FAILED, INTERRUPTED, PENDING
from sweeper.cli.options import Home, Json, Sets, Uri, gpu_index
from sweeper.cli.screen import LiveScreen, console, print_json, say
from sweeper.core.home import DEFAULT_HOME
from sweeper.core.training import BEST, CHECKPOINTS, WEIGHTS
from sweeper.errors import UserError
from sweeper.exports import pass_env, read
from sweeper.production import run as production
from sweeper.production.request import read_request
from sweeper.production.run import TrainResult
from sweeper.production.watch import RunState
from sweeper.results.formatting import figure, loss, rate, seconds, times
from sweeper.system.environment import OF_A_RUN, held_back_line, trial_env
from sweeper.system.files import write_atomic, writing
from sweeper.tracking.mlflow import MlflowTracker

SAVING_SECONDS = 25.0
"""Time for a run to save its last checkpoint after SIGTERM."""
LINE_SECONDS = 1.0
"""Minimum time between two lines about epochs."""


def train(
    exported: Annotated[
        Path, typer.Argument(help="A file written by `sweeper export`.", metavar="BEST.yaml")
    ],
    epochs: Annotated[
        int | None, typer.Option("--epochs", metavar="N", min=1, help="Passes over the training samples.")
    ] = None,
    max_minutes: Annotated[
        float | None,
        typer.Option("--max-minutes", metavar="M", help="Stop after this many minutes in total."),
    ] = None,
    overrides: Sets = None,
    require: Annotated[
        float | None,
        typer.Option("--require", metavar="0.95", help="Exit with 1 below this share of the promised speed."),
    ] = None,
    device: Annotated[
        str, typer.Option("--device", metavar="cpu|cuda:N", help="Default: the first GPUs, else the CPU.")
    ] = "auto",
    new: Annotated[bool, typer.Option("--new", help="Start another run instead of continuing.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="For a command: overwrite files that differ.")
    ] = False,
    home: Home = DEFAULT_HOME,
    tracking_uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Train with an exported configuration, with checkpoints.

    Running the same command again continues from the last checkpoint.

    A pipeline runs in sweeper's trainer, with validation, checkpoints and an MLflow run; at the end
    its speed is compared with the promised one. Options: `--set train.schedule=cosine` (or linear),
    train.patience, train.validate_epochs, train.checkpoint_minutes, train.keep. A command runs with
    the winner's values, in the current folder.

    --json: {"folder", "ended", "epochs", "samples", "seconds", "val_loss", "metrics", "best_loss",
    "best_epoch", "reached", "promised", "ratio", "disturbed": {reason: seconds}, "verdict", "reasons": [...]}

    Example: sweeper train mlruns/sweeps/stocks-a10/best.yaml --epochs 20 --require 0.95
    """
    options = TrainOptions(
        epochs=epochs,
        max_minutes=max_minutes,
        overrides=tuple(overrides or ()),
        device=device,
        require=require,
        new=new,
        force=force,
        tracking_uri=tracking_uri,
        as_json=as_json,
    )
    raise typer.Exit(train_command(exported, home, options))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """The options of the command line."""

    epochs: int | None = None
    max_minutes: float | None = None
    overrides: Sequence[str] = ()
    device: str = "auto"
    require: float | None = None
    new: bool = False
    force: bool = False
    tracking_uri: str | None = None
    as_json: bool = False


def train_command(exported: Path, home: Path, options: TrainOptions) -> int:
    """Runs an export. A pipeline runs in the trainer; a command replaces this process.

    Raises:
        UserError: It is not an export, or the options do not fit it.
    """
    value = read(exported)
    if "command" in value:
        _exec_export(value, options)
    if options.require is not None and not 0 < options.require <= 2:
        raise UserError(f"`--require` must be a share such as 0.95, but got {options.require:g}.")
    if options.device != "auto":
        # Only checked here: the trainer reads it.
        gpu_index(options.device)
    want = read_request(exported, options.overrides, options.epochs, options.max_minutes)
    out = console(stderr=options.as_json)
    # Ctrl-C waits for a checkpoint, however long it takes: the user can press it again.
    signals.allow(SAVING_SECONDS, None)
    tracker = MlflowTracker(home, options.tracking_uri)
    with _Screen(out) as screen:
        for name in want.changed:
            screen.line(f"`{name}` was changed, so no speed is promised.")
        if not want.config.canonical().loader.in_order:
            # A checkpoint records only how many batches were trained on, and these need not be the first.
            screen.line(
                "`loader.in_order` is false. If this run stops and resumes within an epoch, it may skip some "
                "samples and repeat others. `--set config.loader.in_order=true` prevents that."
            )
        result = production.train(home, want, tracker, screen, device=options.device, new=options.new)
    if options.as_json:
        print_json(_as_json(result))
    else:
        _print_end(out, result)
    return _code(result, options, out)


def _code(result: TrainResult, options: TrainOptions, out: Console) -> int:
    # With --new, it would start another run.
    same = "the same command without --new" if options.new else "the same command"
    if result.values["ended"] == "stopped":
        out.print(f"Stopped; {same} continues from the last checkpoint.")
        return INTERRUPTED
    ratio, require = result.judgement.ratio, options.require
    if require is not None and (ratio is None or ratio < require):
        got = "there is nothing to compare" if ratio is None else f"reached {ratio:.3f}"
        out.print(f"--require {require:g} of the promised speed was not met: {got}.")
        return FAILED
    if result.pending:
        say(out, f"The end of the run is not in MLflow yet ({result.pending}). {same.capitalize()} sends it.")
        return PENDING
    return 0


_ENDED = {
    "epochs": "all epochs are done",
    "patience": "the loss stopped improving (`train.patience`)",
    "time": "the time limit was reached",
    "stopped": "it was stopped",
}


def _print_end(out: Console, result: TrainResult) -> None:
    values, judgement = result.values, result.judgement
    lines = [] if result.was_run else ["The run was already finished; nothing was run."]
    lines.append(
        f"Trained {figure(values['epochs'])} epochs, {values['samples']:,} samples,"
        f" in {seconds(values['seconds'])}: {_ENDED[values['ended']]}."
    )
    if values["val_loss"] is not None:
        best = f", best {loss(values['best_loss'])} after epoch {values['best_epoch']}"
        lines.append(f"  loss {loss(values['val_loss'])}{best}")
        lines += [f"  {name} {figure(value)}" for name, value in values["metrics"].items()]
    lines.append(f"  {judgement.words}")
    lines += [f"  {reason}" for reason in judgement.reasons]
    lines.append(f"Weights: {result.path / BEST / WEIGHTS} (best), {result.path / CHECKPOINTS} (last)")
    say(out, "", *lines)


def _as_json(result: TrainResult) -> dict[str, Any]:
    values, judgement = result.values, result.judgement
    named = ("ended", "epochs", "samples", "seconds", "val_loss", "metrics", "best_loss", "best_epoch")
    return {
        "folder": str(result.path),
        **{name: values[name] for name in named},
        "reached": judgement.reached,
        "promised": judgement.promised,
        "ratio": judgement.ratio,
        "disturbed": values["disturbed"],
        "verdict": judgement.words,
        "reasons": judgement.reasons,
    }


class _Screen(LiveScreen):
    """Shows a run: a live line on a terminal, and at most a line per epoch."""

    _said_at = 0.0

    def state(self, now: RunState) -> None:
        """Updates the live line."""
        self.update(now_line(now))

    def validated(self, epoch: int, now: RunState, *, better: bool) -> None:
        """Prints the line of a finished epoch, at most one per second."""
        if time.monotonic() - self._said_at >= LINE_SECONDS:
            self._said_at = time.monotonic()
            best = "  best so far" if better else ""
            self.line(
                f"  epoch {epoch:>4} of {now.total}  {rate(now.throughput):>12}  loss {loss(now.loss)}"
                f"  val {loss(now.val_loss)}{best}"
            )


def now_line(now: RunState) -> str:
    """Returns the progress of a run in one line."""
    promised = f" ({times(now.ratio)} the promised speed)" if now.ratio is not None else ""
    parts = [
        f"epoch {now.epochs:.2f} of {now.total}",
        f"{rate(now.throughput)}{promised}",
        f"loss {loss(now.loss)}",
        f"val {loss(now.val_loss)}" if now.val_loss is not None else "",
        now.utilisation,
        f"{seconds(now.seconds_left)} left" if now.seconds_left is not None else "",
    ]
    return " · ".join(part for part in parts if part)


def _exec_export(value: Mapping[str, Any], options: TrainOptions) -> NoReturn:
    """Writes the files of an exported command and replaces this process with it."""
    if options != TrainOptions(force=options.force, tracking_uri=options.tracking_uri):
        raise UserError(
            "the options of `sweeper train` are for pipelines, but this is an exported command,"
            " which takes only --force. Change the command itself."
        )
    for name, text in value["files"].items():
        path = Path(name)
        with writing(path.parent):
            if not options.force and path.exists() and path.read_bytes() != text.encode():
                raise UserError(f"{name} already exists and differs; --force overwrites it.")
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, text)
    command = [str(item) for item in value["command"]]
    # As in the trials: all but credentials.
    names = ("*", *pass_env(value))
    if line := held_back_line(os.environ, names, **OF_A_RUN):
        say(console(), line)
    say(console(), f"Running {shlex.join(command)}")
    sys.stdout.flush()
    try:
        os.execvpe(command[0], command, {**trial_env(os.environ, names), **environment(value)})
    except OSError as error:
        raise UserError(f"the command cannot be run: {command[0]}: {error.strerror}.") from None
