"""Hands a tune's winner over: writes its file, and says how to use it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Protocol

from sweeper.core.home import home_option
from sweeper.core.job import read_job
from sweeper.core.template import arguments
from sweeper.core.workload import script_of
from sweeper.exports import verification
from sweeper.production.handover import hand_over
from sweeper.sweep.folder.load import LoadedSweep
from sweeper.sweep.observer import SweepObserver


class TuneObserver(SweepObserver, Protocol):
    """Watches a tune: its lines, and the sweep underneath it."""

    def command(self, text: str) -> None:
        """Receives a command or a path for the user to copy, which must stay on one line."""


def hand_over_winner(sweep: LoadedSweep, winner: int, home: Path, observer: TuneObserver) -> Path:
    """Writes the winner's file and says how to use it; returns its path."""
    name, option = sweep.journal.name, home_option(home)
    (export,) = hand_over(home, name).write()
    observer.command(f"Written to {export}.")
    command = shlex.join(command_of(sweep.journal.trial_folder(winner)))
    observer.command(f"Use it:  sweeper exec {shlex.quote(str(export))} -- {command}")
    if verification.read(sweep.table.records[winner]) is not None:
        observer.command(f"Keep it: sweeper export {name} --format patch{option}")
    observer.command(f"Details: sweeper show {name}{option}")
    return export


def command_of(folder: Path) -> list[str]:
    """Returns the command of the trial in `folder`, with the values that `--with-flags` gave its options."""
    job = read_job(folder)
    return arguments(script_of(job).command, job.config.args or {})


def report_files(sweep: LoadedSweep, observer: TuneObserver) -> list[Path]:
    """Writes the report of a tune; returns its files."""
    # Slow to import, and needed only at the end.
    from sweeper.report import files

    return files(sweep, observer.line)
