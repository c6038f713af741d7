"""`sweeper sync`: sends missing data to MLflow, or lists what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sweeper.cli.exit_codes import FAILED, PENDING
from sweeper.cli.options import Home, Json, Uri
from sweeper.cli.screen import console, print_json, say
from sweeper.core.home import DEFAULT_HOME, home_option
from sweeper.errors import EnvironmentStopError, SweepConflictError, UserError
from sweeper.sweep.folder.catalog import all_sweeps, find_sweep, line_of_schema_1, lock_of, require_schema
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.folder.load import load_sweep
from sweeper.sweep.hints import pending_line, uri_option
from sweeper.sweep.publish import Publisher, made_files, publish_sweep, run_views, sweep_info
from sweeper.tracking import DeletedError
from sweeper.tracking.mlflow import MlflowTracker
from sweeper.tracking.verify import compare

MAX_LINES = 20


def sync(
    name: Annotated[str | None, typer.Argument(help="Sweep to send. Default: all of them.")] = None,
    home: Home = DEFAULT_HOME,
    uri: Uri = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Send nothing; list what is missing or extra.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Send finished trials that are missing from MLflow.

    Safe to repeat.

    Exits with 7 if something could not be sent. With --verify, exits with 1 if anything differs.

    --json: {"sweeps": [{"name", "runs", "pending": [numbers], "problem"}]}; with --verify
    {"sweeps": [{"name", "runs", "points", "lacking": [text], "extra": [text]}]}

    Example: sweeper sync stocks-a10 --tracking-uri http://mlflow:5000
    """
    raise typer.Exit(sync_command(home, name, uri, verify=verify, as_json=as_json))


def sync_command(home: Path, name: str | None, uri: str | None, *, verify: bool, as_json: bool) -> int:
    """Sends what is missing, or lists it with `verify`; returns the exit code."""
    journals = [find_sweep(home, name)] if name else all_sweeps(home)
    if not journals:
        raise UserError(f"There are no sweeps in {home}. Start one with `sweeper run SPACE.yaml`.")
    documents, code = [], 0
    for journal in journals:
        try:
            if not name and (line := line_of_schema_1(journal, "send")):
                # Another command than this one has nothing to send of it, either.
                if not as_json:
                    say(console(), line)
                continue
            require_schema(journal, "send")
            document, lines = _verify(home, journal, uri) if verify else _send(home, journal, uri)
        except (SweepConflictError, EnvironmentStopError, DeletedError) as error:
            # A sweep that is damaged or was deleted must not keep the others from being sent.
            if name:
                raise
            document, lines = {"name": journal.name, "problem": str(error)}, [str(error)]
        documents.append(document)
        if document.get("lacking") or document.get("extra"):
            code = FAILED
        elif document.get("pending") or document.get("problem"):
            code = PENDING
        if not as_json:
            say(console(), *lines)
    if as_json:
        print_json({"sweeps": documents})
    return code


def _send(home: Path, journal: Journal, uri: str | None) -> tuple[dict[str, Any], list[str]]:
    tracker = MlflowTracker(home, uri, thorough=True)
    # Anything that a running supervisor sends meanwhile would arrive twice.
    lock = lock_of(journal)
    try:
        sweep = load_sweep(journal)
        tracker.open(sweep_info(sweep))
        publisher = Publisher(tracker, sweep_info(sweep), journal.folder, thorough=True)
        try:
            pending, problem = publish_sweep(sweep, publisher, made_files(sweep))
        finally:
            publisher.close()
    finally:
        lock.release()
    runs, deleted = len(sweep.table.finished_trials()), tracker.num_deleted
    complete = f"{runs - len(pending) - deleted} of {runs} runs are complete in MLflow"
    lines = [f"{journal.name}: {complete}{_deleted_text(deleted)}."]
    if problem:
        options = home_option(home) + uri_option(tracker, uri)
        lines.append(pending_line(len(pending), problem, journal.name, options))
    return {"name": journal.name, "runs": runs, "pending": pending, "problem": problem}, lines


def _deleted_text(count: int) -> str:
    """Returns the end of a sentence on runs that the user deleted; empty without any."""
    return f"; {count} deleted there {'is' if count == 1 else 'are'} not sent again" if count else ""


def _verify(home: Path, journal: Journal, uri: str | None) -> tuple[dict[str, Any], list[str]]:
    sweep = load_sweep(journal)
    trials = list(run_views(sweep, made_files(sweep)))
    comparison = compare(MlflowTracker(home, uri), sweep_info(sweep), trials)
    what = f"{comparison.runs} runs with {comparison.points} points"
    if not comparison.lacking and not comparison.extra:
        lines = [f"{journal.name}: MLflow matches the folder: {what}{_deleted_text(comparison.deleted)}."]
    else:
        lines = [
            f"{journal.name}: MLflow differs from the folder ({what}):"
            f" {len(comparison.lacking)} missing, {len(comparison.extra)} extra."
        ]
    for title, listed in (("missing", comparison.lacking), ("extra", comparison.extra)):
        lines += [f"  {title}: {line}" for line in listed[:MAX_LINES]]
        if len(listed) > MAX_LINES:
            lines.append(f"  {title}: and {len(listed) - MAX_LINES} more (--json lists all)")
    document = {"lacking": list(comparison.lacking), "extra": list(comparison.extra)}
    return {"name": journal.name, "runs": comparison.runs, "points": comparison.points, **document}, lines
