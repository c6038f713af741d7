"""Lists the commands, and turns errors into one line and an exit code."""

from __future__ import annotations

import codecs
import errno
import io
import os
import signal
import sys
import traceback
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command

from sweeper._version import __version__
from sweeper.cli import signals
from sweeper.cli.exit_codes import BUG, INTERRUPTED
from sweeper.cli.options import with_paths
from sweeper.errors import SweeperError, UserError
from sweeper.system.files import cannot_write
from sweeper.system.installed import missing_line

_OF_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""Errors that are the disk's, wherever they are raised."""

COMMANDS = {
    "init": "Write a first search space for a pipeline or for a training script.",
    "run": "Run a sweep, or continue one that was interrupted.",
    "watch": "Watch an unmodified training script: its speed, the parts of a step, and what limits it.",
    "tune": "Make a training script faster without editing it, and verify that it trains the same.",
    "exec": "Run a training script with the changes that a tune found, made at run time.",
    "judge": "Judge a change to a training script: is it faster, and does it train the same?",
    "mcp": "Serve watch, tune, judge and show to a coding agent, over standard input and output (MCP).",
    "check": "Validate a search space and show what it searches.",
    "spaces": "List the search spaces that come with sweeper.",
    "list": "List sweeps, the latest first.",
    "show": "Show a sweep's summary and its trials.",
    "confirm": "Measure a sweep's winner against its baseline again.",
    "doctor": "Check whether this machine is fit for sweeps, and measure what it can do.",
    "ui": "Open a sweep's comparison in the MLflow UI.",
    "report": "Write a sweep's report as HTML, Markdown or PNG figures.",
    "compare": "Compare two sweeps: two GPUs, or before and after a change.",
    "export": "Export the winning configuration for production.",
    "train": "Train with an exported configuration, with checkpoints.",
    "sync": "Send finished trials that are missing from MLflow.",
}
"""Commands and their help, in listed order. `sweeper.cli.NAME` has the command, as its function NAME."""

FIRST_LINES = """\
sweeper makes PyTorch training faster, and shows that it trains the same.
  sweeper tune -- python train.py     make a script faster; nothing of yours is written
  sweeper watch -- python train.py    see what holds it up
  sweeper tune --example              see it work on a small training
  sweeper --help                      list all commands"""
"""What `sweeper` prints without a command."""


OF_SCRIPTS = ("watch", "tune", "judge", "mcp")
"""Commands that end with the command of a script."""


class Commands(TyperGroup):
    """Imports each command only when it is used, so that help is fast."""

    def __init__(self, **options: Any) -> None:
        """Registers only the names; typer suggests the nearest one for a typo."""
        super().__init__(**options)
        self.commands = dict.fromkeys(COMMANDS)  # type: ignore[assignment]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the options of the program itself; returns the remaining words."""
        return list(super().parse_args(ctx, with_paths(args)))

    def list_commands(self, ctx: Any) -> list[str]:
        """Returns the names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns a command, or None if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"sweeper.cli.{cmd_name}")
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        # Without `--`, too, the options behind a script are its own: `tune python train.py --epochs 3`.
        settings = {"allow_interspersed_args": cmd_name not in OF_SCRIPTS}
        single.command(cmd_name, context_settings=settings)(getattr(module, cmd_name))
        return get_command(single)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the table of commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    name="sweeper",
    cls=Commands,
    help="Finds the training configuration that keeps your GPU busy and your run short, and confirms it.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    """Options of the program itself."""
    if version:
        print(f"sweeper {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(FIRST_LINES)


def run_app() -> NoReturn:
    """Runs the command line; turns every error that a user can meet into one line and an exit code."""
    if not sys.platform.startswith("linux"):
        print(f"sweeper runs on Linux only (this is {sys.platform}).", file=sys.stderr)
        sys.exit(UserError.exit_code)
    # Printing a dash without a UTF-8 locale, or a path that is not valid text, must not end the program.
    codecs.register_error("sweeper.ascii", _as_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="sweeper.ascii")
    code: int
    try:
        _check_current_folder()
        code = app(standalone_mode=False) or 0
        if code == INTERRUPTED:
            # typer reports Ctrl-C as this code.
            raise KeyboardInterrupt
    except BaseException as error:
        code = _report_error(error)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        # For example, the disk is full.
        code = code or _print_error(cannot_write(error))
    sys.exit(code)


_ASCII = dict(zip("–·…×◄►─│├└▁▂▃▄▅▆▇█", "-|~x<>-||`_.-=+*%#", strict=True))
"""ASCII replacements for the characters that we print, for a terminal without Unicode."""


def _as_ascii(error: UnicodeError) -> tuple[str, int]:
    """Replaces a character that the terminal cannot encode (for `codecs.register_error`)."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    plain = _ASCII.get(character, character.encode("ascii", "backslashreplace").decode())
    return plain, error.start + 1


def _check_current_folder() -> None:
    """Checks that the current folder exists: pipelines are looked up in it.

    Raises:
        UserError: It is gone.
    """
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UserError("the current folder was removed. Change to another one with `cd`.") from None


def _report_error(error: BaseException) -> int:
    """Prints why the program ended, if the user needs to know, and returns the exit code."""
    handler = signals.current_handler()
    if handler is not None and (handler.unwinding or handler.count > 1):
        # A library may have raised another error in its place.
        return signals.report_stop(handler.first)
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return signals.report_stop(signal.SIGINT)
    if isinstance(error, SweeperError):
        return _print_error(error)
    if isinstance(error, SystemExit):
        if isinstance(error.__context__, BrokenPipeError):
            # The reader of our output is gone, so there is nobody to tell.
            return 0
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if not isinstance(error, Exception):
        raise error
    if hasattr(error, "show") and hasattr(error, "exit_code"):
        # An error of click's own, such as an unknown option.
        error.show()
        return int(error.exit_code)
    if isinstance(error, OSError) and error.errno in _OF_DISK:
        return _print_error(cannot_write(error))
    if line := missing_line(error):
        return _print_error(UserError(f"{line}."))
    return _report_bug(error)


def _print_error(error: SweeperError) -> int:
    """Prints an error; returns its exit code."""
    _print_line(str(error))
    return error.exit_code


def _print_line(text: str) -> None:
    lines = text.splitlines() or [""]
    clean = ["".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in line) for line in lines]
    print("sweeper: " + "\n".join(clean), file=sys.stderr)


def _report_bug(error: Exception) -> int:
    """Writes the traceback of a bug in sweeper to a file and prints its path."""
    import tempfile

    what = f"a bug in sweeper ({type(error).__name__}: {error})"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="sweeper-crash-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            traceback.print_exception(error, file=file)
        _print_line(f"{what}. The traceback is in {file.name}.")
    except OSError as cannot:
        last = traceback.extract_tb(error.__traceback__)[-1]
        _print_line(f"{what}, in {last.filename}:{last.lineno}. The traceback could not be saved ({cannot}).")
    return BUG
