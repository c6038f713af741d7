"""The commands, their options, and what an error looks like: one line and an exit code."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from sweeper import __version__
from sweeper.core.errors import SweeperError

app = typer.Typer(
    name="sweeper",
    help="Finds the training configuration that makes your GPU busy and your run short, and proves it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Home = Annotated[Path, typer.Option("--home", envvar="SWEEPER_HOME", help="State folder.", show_default=True)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Space = Annotated[Path, typer.Argument(help="The search space: a YAML file.", metavar="SPACE.yaml")]
Name = Annotated[str, typer.Argument(help="Name of a sweep (see `sweeper list`).")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a value of the YAML; may be repeated."),
]

DEFAULT_HOME = Path("mlruns")
INTERRUPTED = 130


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
) -> None:
    """Run a sweep, or continue it: the same command again never repeats a trial.

    Example: sweeper run search_spaces/a10.yaml --set search.trials=20
    """
    from sweeper.cli.running import device_override, run_command

    chosen = [*(overrides or []), *device_override(device)]
    if dry:
        from sweeper.cli.planning import dry_run_command

        raise typer.Exit(dry_run_command(space, chosen, home, new=new))
    raise typer.Exit(run_command(space, chosen, home, new=new, extend=extend))


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
) -> None:
    """Show a sweep's summary and its trials, or one trial.

    Example: sweeper show stocks-a10 --trial 7
    """
    from sweeper.cli.showing import show_command, show_trial_command

    if trial is None:
        show_command(home, name, as_json=as_json)
    else:
        show_trial_command(home, name, trial, as_json=as_json)


@app.command()
def export(
    name: Name,
    home: Home = DEFAULT_HOME,
    form: Annotated[str, typer.Option("--format", help="yaml, json, args (command line), python.")] = "yaml",
    trial: Annotated[
        int | None, typer.Option("--trial", metavar="N", help="Another trial than the winner.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="File to write; `-` prints. Default: the sweep's best.yaml.")
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
    from sweeper.cli.showing import export_command

    export_command(home, name, form, trial, out, patch)


@app.command()
def train(
    exported: Annotated[Path, typer.Argument(help="What `sweeper export` has written.", metavar="BEST.yaml")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that differ.")] = False,
) -> None:
    """Run an exported command as it won, in the current directory.

    Example: sweeper train mlruns/sweeps/my-script/best.yaml
    """
    from sweeper.cli.training import train_command

    train_command(exported, force=force)


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

    --json: {"name", "number", "holds", "before": {"ratio", "low", "high"}, "now": {...} | null,
    "soak": {"seconds", "throughput", "held"} | null}

    Example: sweeper confirm stocks-a10 --soak 5m
    """
    from sweeper.cli.confirming import confirm_command

    raise typer.Exit(confirm_command(home, name, soak, as_json=as_json))


@app.command()
def ui(
    name: Annotated[str | None, typer.Argument(help="Sweep to open; the latest by default.")] = None,
    home: Home = DEFAULT_HOME,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Local port.")] = 5000,
) -> None:
    """Open the MLflow interface on a sweep's comparison (Ctrl-C ends it).

    Example: sweeper ui stocks-a10
    """
    from sweeper.cli.serving import ui_command

    raise typer.Exit(ui_command(home, name, port))


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


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    """Options of the program itself."""
    if version:
        print(f"sweeper {__version__}")
        raise typer.Exit


class _TerminatedError(BaseException):
    """SIGTERM, as an exception that unwinds as Ctrl-C does."""


def _on_sigterm(number: int, frame: Any) -> NoReturn:
    raise _TerminatedError


def main() -> NoReturn:
    """Runs the command line; every error a person can meet is one line and an exit code."""
    if not sys.platform.startswith("linux"):
        print(f"sweeper runs on Linux only (this is {sys.platform}).", file=sys.stderr)
        sys.exit(2)
    signal.signal(signal.SIGTERM, _on_sigterm)
    code: int
    try:
        code = app(standalone_mode=False) or 0
        if code == INTERRUPTED:
            # How typer passes Ctrl-C on.
            raise KeyboardInterrupt
    except SweeperError as error:
        _say(str(error))
        code = error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        _say("stopped (Ctrl-C). What is finished is kept; the same command continues.")
        code = INTERRUPTED
    except _TerminatedError:
        _say("stopped (SIGTERM). What is finished is kept; the same command continues.")
        code = 143
    except SystemExit as ended:
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        # The reader of our output has gone; there is no one to tell.
        code = 0
    except Exception as error:
        if hasattr(error, "show") and hasattr(error, "exit_code"):
            error.show()
            code = error.exit_code
        else:
            code = _bug(error)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _say(text: str) -> None:
    lines = text.splitlines() or [""]
    clean = ["".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in line) for line in lines]
    print("sweeper: " + "\n".join(clean), file=sys.stderr)


def _bug(error: Exception) -> int:
    """Writes the traceback of a bug of ours to a file, and says where."""
    import tempfile

    with tempfile.NamedTemporaryFile(
        "w", prefix="sweeper-crash-", suffix=".txt", delete=False, encoding="utf-8"
    ) as file:
        traceback.print_exception(error, file=file)
    _say(f"a bug of sweeper's own ({type(error).__name__}: {error}). The traceback is in {file.name}.")
    return 70
