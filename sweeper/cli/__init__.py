"""Implements the command line: one module per command, which parses, calls and prints.

The other modules help them:

app                              lists the commands; turns errors into exit codes
options, exit_codes, signals     what commands take, return, and do at Ctrl-C
screen                           prints to a terminal or a file, and keeps a live line
summary, sensitivity             the summary of a sweep; what moving its winner costs
trial_view                       `show --trial`
check_pipeline, check_script     `check --deep`, for either kind of work
patch_script                     `export --format patch`

`sync_command`, `train_command` and `ui_command` carry out a command whose options are parsed, and return its
exit code, so that tests can call them.
"""

from __future__ import annotations

from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Runs the command line without handling signals (`sweeper.__main__` does)."""
    # Imported late: the import takes long enough for the user to press Ctrl-C.
    from sweeper.cli.app import run_app

    run_app()
