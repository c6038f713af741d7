"""The commands around a sweep: from a first space to what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sweeper.cli.options import DEFAULT_HOME, Home, Json, Name, Sets, Space, Uri, app
from sweeper.errors import UserError


@app.command()
def init(
    pipeline: Annotated[
        str | None,
        typer.Argument(help="A pipeline's module, or `x` for `pipelines.x`.", metavar="PIPELINE"),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--command", help="In place of it, how you train: the command line of your script, in quotes."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="File to write; `-` prints. Default: NAME.yaml."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
) -> None:
    """Write a first search space: for a pipeline on this machine's device, or for a script of your own.

    Of a pipeline its source is read, for its options and what is worth searching (DATA, MODEL, SPACE); of
    a script its command line and its --help.

    Example: sweeper init tabular --out first.yaml
    """
    from sweeper.cli.init import init_command, init_pipeline_command

    if pipeline is not None and command is None:
        init_pipeline_command(pipeline, out, force=force)
    elif command is not None and pipeline is None:
        init_command(command, out, force=force)
    else:
        both = f"{pipeline!r} and --command" if pipeline else "neither"
        raise UserError(f"`sweeper init` needs a PIPELINE or a --command, but got {both}.")


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

    Example: sweeper run a10 --set search.trials=20
    """
    from sweeper.cli.run import device_override, run_command

    chosen = [*(overrides or []), *device_override(device)]
    if dry:
        from sweeper.cli.check import dry_run_command

        raise typer.Exit(dry_run_command(space, chosen, home, new=new))
    raise typer.Exit(run_command(space, chosen, home, new=new, extend=extend, uri=uri))


@app.command()
def check(
    space: Space,
    overrides: Sets = None,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep",
            help="Also prepare a pipeline's data and take two steps, or run a `command` for seconds.",
        ),
    ] = False,
    home: Home = DEFAULT_HOME,
    as_json: Json = False,
) -> None:
    """Read a search space and say what it asks for, or every mistake in it. Runs nothing without --deep.

    With --deep a pipeline's data is prepared (the sweep will find it in the state folder), and its baseline
    and its largest configuration take two training steps: samples, batch, parameters, loss, memory. Of a
    command it is shown what was understood of its output. Exits with 1 where that fails.

    --json, with --deep: {"name", "device", "room_gib", "synthetic", "notes", "left_out", "resident",
    "baseline": {"config", "train_samples", "val_samples", "data_bytes", "batch": {name: {"shape", "dtype"}},
    "batch_bytes", "parameters", "losses", "step_seconds", "peak_gib"} | null, "largest": {"config",
    "steps": [as the baseline], "expected_gib", "not_run"} | null, "failure"}

    Example: sweeper check a10 --deep
    """
    from sweeper.cli.check import check_command

    if as_json and not deep:
        raise UserError("`--json` must stand with `--deep`, but got it alone.")
    spec = check_command(space, overrides or [], silent=as_json)
    if deep and spec.command:
        from sweeper.cli.check_script import deep_command

        raise typer.Exit(deep_command(spec, as_json=as_json))
    if deep:
        from sweeper.cli.check_pipeline import deep_pipeline_command

        raise typer.Exit(deep_pipeline_command(spec, home, as_json=as_json))


@app.command()
def spaces(as_json: Json = False) -> None:
    """List the search spaces that come with sweeper, to be run by name.

    A file of that name in the current folder, or in its search_spaces/, comes first.

    --json: [{"name", "about", "file"}], the file being the one that `sweeper run NAME` reads.

    Example: sweeper spaces
    """
    from sweeper.cli.spaces import spaces_command

    spaces_command(as_json=as_json)


@app.command("list")
def list_sweeps(home: Home = DEFAULT_HOME, as_json: Json = False) -> None:
    """List the sweeps of this folder, the latest first.

    Example: sweeper list
    """
    from sweeper.cli.show import list_command

    list_command(home, as_json=as_json)


@app.command()
def show(
    name: Name,
    home: Home = DEFAULT_HOME,
    as_json: Json = False,
    trial: Annotated[int | None, typer.Option("--trial", metavar="N", help="One trial in full.")] = None,
    why: Annotated[bool, typer.Option("--why", help="Where each trial's configuration came from.")] = False,
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
    from sweeper.cli.show import show_command, show_trial_command, table_command, why_command

    if (out is not None and form is None) or (form is not None and (as_json or trial is not None)):
        raise UserError("`--format` must stand without `--json` and `--trial`, and `--out` with `--format`.")
    if why and (as_json or trial is not None or form is not None):
        raise UserError("`--why` must stand alone; `--trial N` and `--json` tell it as well.")
    if why:
        why_command(home, name)
    elif form is not None:
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
    from sweeper.cli.confirm import confirm_command

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
    from sweeper.cli.doctor import doctor_command

    raise typer.Exit(doctor_command(home, as_json=as_json))
