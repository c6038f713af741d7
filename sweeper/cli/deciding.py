"""The commands after a sweep: compare, decide, ship."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sweeper.cli.options import DEFAULT_HOME, Home, Json, Name, Sets, Uri, app
from sweeper.core import export_formats


@app.command()
def ui(
    name: Annotated[str | None, typer.Argument(help="Sweep to open; the latest by default.")] = None,
    home: Home = DEFAULT_HOME,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Local port.")] = 5000,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; of this machine.")] = "127.0.0.1",
    i_know: Annotated[
        bool,
        typer.Option(
            "--i-know", help="Take any --host: whoever reaches it may read, change and delete every run."
        ),
    ] = False,
    uri: Uri = None,
) -> None:
    """Open the MLflow interface on a sweep's comparison (Ctrl-C ends it); of a server, print the address.

    Example: sweeper ui stocks-a10
    """
    from sweeper.cli.ui import ui_command

    raise typer.Exit(ui_command(home, name, port, uri, host, i_know=i_know))


@app.command()
def report(
    name: Name,
    home: Home = DEFAULT_HOME,
    form: Annotated[
        str, typer.Option("--format", help="html (one page), md (a summary), png (figures).")
    ] = "html",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="File to write, `-` to print it, a folder for png. Default: in the sweep's folder."
        ),
    ] = None,
) -> None:
    """Write a sweep's report: the decision first, then figures; one page that needs no network.

    Example: sweeper report stocks-a10 --format md --out summary.md
    """
    from sweeper.cli.report import report_command

    report_command(home, name, form, out)


@app.command()
def compare(
    one: Annotated[str, typer.Argument(metavar="A", help="A sweep: NAME, HOME:NAME, or its folder.")],
    other: Annotated[str, typer.Argument(metavar="B", help="The one to hold against it.")],
    home: Home = DEFAULT_HOME,
    fail_if_slower: Annotated[
        str | None,
        typer.Option(
            "--fail-if-slower", metavar="5%", help="Exit with 1 where B is slower than A by more than that."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Hold a sweep against another one: two GPUs, or before and after a change.

    --fail-if-slower looks at the baselines and at the winners, and counts one as slower where its whole
    95 % interval is: where that is wider, nothing is decided, which is said, and is no failure.

    --json: {"a", "b": {"name", "state", "device", "torch", "synthetic", "baseline": {...} | null,
    "winner": {"number", "how", "throughput", "epoch_seconds", "rounds", "val_loss", "verdict", ...} | null},
    "unfair": [...], "differences": [...], "baseline", "winner", "gain": {"ratio", "low", "high",
    "epoch_ratio", "check": "slower"|"not slower"|"not decided"} | null, "configuration": {name: [A, B]},
    "searched": [...], "pairs": [{"a", "b", "ratio"}], "median"}. All ratios are B over A; "gain" is that of
    the winners' ratios to their own baselines.

    Example: sweeper compare stocks-a10 stocks-a10-2 --fail-if-slower 5%
    """
    from sweeper.cli.compare import compare_command

    raise typer.Exit(compare_command(home, one, other, fail_if_slower, as_json=as_json))


@app.command()
def export(
    name: Name,
    home: Home = DEFAULT_HOME,
    form: Annotated[
        str,
        typer.Option("--format", help=f"{export_formats.described()}."),
    ] = export_formats.YAML,
    trial: Annotated[
        int | None, typer.Option("--trial", metavar="N", help="Another trial than the winner.")
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            "--rule",
            help="Of several objectives: the trial that `knee` or `lowest_loss` picks from the front.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help=f"File to write; `-` prints, as {' and '.join(export_formats.printed())} do. "
            "Default: the sweep's best.yaml.",
        ),
    ] = None,
    flags: Annotated[
        Path | None,
        typer.Option(
            "--map", metavar="FILE.yaml", help="With --format args: your own flags, as `batch_size: --bs`."
        ),
    ] = None,
    patch: Annotated[
        Path | None,
        typer.Option(
            "--patch", metavar="SCRIPT.py", help="With --format python: what to change in it, line by line."
        ),
    ] = None,
) -> None:
    """Write the winning configuration, with where it comes from and what it reached.

    Example: sweeper export stocks-a10 --format json --out best.json
    """
    from sweeper.cli.export import export_command

    export_command(home, name, form, trial, out, patch, flags, rule)


@app.command()
def train(
    exported: Annotated[Path, typer.Argument(help="What `sweeper export` has written.", metavar="BEST.yaml")],
    epochs: Annotated[
        int | None, typer.Option("--epochs", metavar="N", min=1, help="Passes over the training samples.")
    ] = None,
    max_minutes: Annotated[
        float | None, typer.Option("--max-minutes", metavar="M", help="End after so many minutes in all.")
    ] = None,
    overrides: Sets = None,
    require: Annotated[
        float | None,
        typer.Option("--require", metavar="0.95", help="Exit with 1 below this share of the promised speed."),
    ] = None,
    device: Annotated[
        str, typer.Option("--device", metavar="cpu|cuda:N", help="Default: the first GPUs, else the CPU.")
    ] = "auto",
    new: Annotated[bool, typer.Option("--new", help="Begin another run, whatever is there.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Of a command: overwrite files that differ.")
    ] = False,
    home: Home = DEFAULT_HOME,
    tracking_uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Train an exported configuration to its end; the same command again goes on from the last checkpoint.

    With its own trainer for a pipeline, with validation, checkpoints and an MLflow run; at the end what was
    promised is held against what was reached. `--set train.schedule=cosine` (or linear), train.patience,
    train.validate_epochs, train.checkpoint_minutes, train.keep. A command is run as it won, in the current
    directory.

    --json: {"folder", "ended", "epochs", "samples", "seconds", "val_loss", "told", "best_loss",
    "best_epoch", "reached", "promised", "ratio", "disturbed": {reason: seconds}, "verdict", "reasons": [...]}

    Example: sweeper train mlruns/sweeps/stocks-a10/best.yaml --epochs 20 --require 0.95
    """
    from sweeper.cli.train import Asked, train_command

    asked = Asked(
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
    raise typer.Exit(train_command(exported, home, asked))


@app.command()
def sync(
    name: Annotated[str | None, typer.Argument(help="Sweep to send; all of them by default.")] = None,
    home: Home = DEFAULT_HOME,
    uri: Uri = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Send nothing; name what lacks and what is too many.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Send to MLflow what it lacks of a sweep's finished trials; safe to repeat.

    Exits with 7 where something could not be sent, and with --verify with 1 where anything differs.

    --json: {"sweeps": [{"name", "runs", "pending": [numbers], "problem"}]}; with --verify
    {"sweeps": [{"name", "runs", "points", "lacking": [text], "extra": [text]}]}

    Example: sweeper sync stocks-a10 --tracking-uri http://mlflow:5000
    """
    from sweeper.cli.options import home_option
    from sweeper.cli.sync import sync_command

    raise typer.Exit(sync_command(home, name, uri, home_option(home), verify=verify, as_json=as_json))
