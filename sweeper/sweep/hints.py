"""Lines that say where a sweep is shown, and which commands send it to MLflow or show it there."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from sweeper.core.home import SHELL_URI, home_option
from sweeper.sweep.folder.load import LoadedSweep
from sweeper.sweep.publish import made_files
from sweeper.sweep.run import SweepRun
from sweeper.tracking.mlflow import MlflowTracker
from sweeper.tracking.ui import DATABASE, store_uri


def pending_line(count: int, problem: str, name: str, options: str) -> str:
    """Returns a line on what is not in MLflow yet; `sweeper sync NAME` needs `options`."""
    runs = {0: "The experiment's description is", 1: "1 run is"}.get(count, f"{count} runs are")
    what = "it" if count < 2 else "them"
    return f"{runs} not in MLflow yet ({problem}). `sweeper sync {name}{options}` sends {what}."


def place_lines(sweep: LoadedSweep, tracker: MlflowTracker, home: Path) -> list[str]:
    """Returns the report of a sweep, and the store that shows it."""
    place = tracker.place
    if not place and (home / DATABASE).exists():
        place = f"mlflow ui --backend-store-uri {shlex.quote(store_uri(home))}"
    pages = [path for path in made_files(sweep) if path.endswith(".html")]
    return [*(f"Report:  {page}" for page in pages), *([f"         {place}"] if place else [])]


def unsent_lines(done: SweepRun, tracker: MlflowTracker, uri: str | None, home: Path) -> list[str]:
    """Returns a line if MLflow lacks something of a sweep."""
    options = home_option(home) + uri_option(tracker, uri)
    return [pending_line(done.pending, done.problem, done.journal.name, options)] if done.problem else []


def uri_option(tracker: MlflowTracker, uri: str | None) -> str:
    """Returns ` --tracking-uri URI`, quoted for a shell, unless the store is the same without it."""
    is_usual = (uri or "") == os.environ.get(SHELL_URI, "")
    return "" if is_usual else f" --tracking-uri {shlex.quote(tracker.place)}"


def look_command(tracker: MlflowTracker, uri: str | None, name: str, home: Path) -> str:
    """Returns the command that shows a sweep in MLflow."""
    if tracker.place and not tracker.is_server:
        return f"mlflow ui --backend-store-uri {shlex.quote(tracker.place)}"
    return f"sweeper ui {name}{home_option(home)}{uri_option(tracker, uri)}"
