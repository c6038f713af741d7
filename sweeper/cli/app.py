"""The program: its commands, and what an error looks like: one line and an exit code."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from typing import Any, NoReturn

import typer

# Imported for the commands that they add, in the order in which help lists them.
from sweeper.cli import commands, deciding
from sweeper.cli.options import app
from sweeper.core.errors import SweeperError

__all__ = ["commands", "deciding", "main"]

INTERRUPTED = 130


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
