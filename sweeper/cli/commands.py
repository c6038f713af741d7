"""The commands around a sweep: from a first space to what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sweeper.cli.options import DEFAULT_HOME, Home, Json, Name, Sets, Space, Uri, app
from sweeper.core.errors import UserError


@app.command()
def init(
    command: Annotated[
        str, typer.Option("--command", help="How you train: the command line of your script, in quotes.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="File to write; `-` prints. Default: SCRIPT.yaml."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
) -> None:
    """Write a first search space for a script of your own, from its command line and its --help.

    Example: sweeper init --command "python train.py -b 64 -j 8"
    """
    from sweeper.cli.proposing import init_command

    init_command(command, out, force=force)


@app.command()
def run(
    space: Space,
    overrides: Sets = None,
    home: Home = DEFAULT_HOME,
    new: Annotated[bool, typer.Option("--new", help="Begin another sweep under a new name.")] = False,
    extend: Annotated[
        int, typer.Option("--extend", metavar="N", min=0, help="Add N trials to a finished sweep.")
    ] = 0,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", metavar="cpu|cuda:N", help="Run on this device. Default: every GPU, else the CPU."
        ),
    ] = None,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done and for how long; nothing is trained.")
    ] = False,
    uri: Uri = None,
) -> None:
    """Run a sweep, or continue it: the same command again never repeats a trial.

    Example: sweeper run search_spaces/a10.yaml --set search.trials=20
    """
    from sweeper.cli.running import device_override, run_command

    chosen = [*(overrides or []), *device_override(device)]
    if dry:
        from sweeper.cli.planning import dry_run_command

        raise typer.Exit(dry_run_command(space, chosen, home, new=new))
    raise typer.Exit(run_command(space, chosen, home, new=new, extend=extend, uri=uri))


@app.command()
def check(
    space: Space,
    overrides: Sets = None,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep", help="Run the script of a `command` for some seconds, and show what was understood."
        ),
    ] = False,
) -> None:
    """Read a search space and say what it asks for, or every mistake in it. Runs nothing without --deep.

    Example: sweeper check search_spaces/a10.yaml
    """
    from sweeper.cli.showing import check_command

    spec = check_command(space, overrides or [])
    if deep:
        from sweeper.cli.trying import deep_command

        raise typer.Exit(deep_command(spec))


@app.command("list")
def list_sweeps(home: Home = DEFAULT_HOME, as_json: Json = False) -> None:
    """List the sweeps of this folder, the latest first.

    Example: sweeper list
    """
    from sweeper.cli.showing import list_command

    list_command(home, as_json=as_json)


@app.command()
def show(
    name: Name,
    home: Home = DEFAULT_HOME,
    as_json: Json = False,
    trial: Annotated[int | None, typer.Option("--trial", metavar="N", help="One trial in full.")] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="FORMAT", help="All trials with all metrics: csv, json, parquet, table."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="File for --format; `-` prints, as all but parquet do."),
    ] = None,
) -> None:
    """Show a sweep's summary and its trials, or one trial, or all trials as a table.

    Example: sweeper show stocks-a10 --trial 7
    """
    from sweeper.cli.showing import show_command, show_trial_command, table_command

    if (out is not None and form is None) or (form is not None and (as_json or trial is not None)):
        raise UserError("`--format` must stand without `--json` and `--trial`, and `--out` with `--format`.")
    if form is not None:
        table_command(home, name, form, out)
    elif trial is None:
        show_command(home, name, as_json=as_json)
    else:
        show_trial_command(home, name, trial, as_json=as_json)


@app.command()
def confirm(
    name: Name,
    home: Home = DEFAULT_HOME,
    soak: Annotated[
        str | None,
        typer.Option(
            "--soak", metavar="5m", help="Then run the winner for so long, and see whether it holds."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure a sweep's winner against its baseline once more; what the sweep found stays as it is.

    Exits with 1 where the winner is not faster today.

    --json: {"name", "number", "holds", "before": {"ratio", "low", "high", "throughput"},
    "now": {...} | null, "soak": {"seconds", "throughput", "held"} | null}

    Example: sweeper confirm stocks-a10 --soak 5m
    """
    from sweeper.cli.confirming import confirm_command

    raise typer.Exit(confirm_command(home, name, soak, as_json=as_json))


@app.command()
def doctor(home: Home = DEFAULT_HOME, as_json: Json = False) -> None:
    """Say whether this machine is fit for sweeps, and measure what it can do: 10 to 60 s, GPU or none.

    Exits with 1 where a check failed, each with its remedy; warnings are allowed.

    --json: {"ok": bool, "checks": [{"name", "state": "ok"|"warn"|"fail", "text", "remedy"}],
    "ceilings": [{"name", "value", "unit"}]}; ceilings are named cpu.matmul_fp32, cuda:0.memory_copy,
    loader.rows, and so on, and are absent where nothing was measured.

    Example: sweeper doctor
    """
    from sweeper.cli.examining import doctor_command

    raise typer.Exit(doctor_command(home, as_json=as_json))
