"""`list` and `show`: what there is."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.text import Text

from sweeper.analysis.formatting import times
from sweeper.analysis.summary import to_json, trial_json
from sweeper.cli.options import home_option
from sweeper.cli.screen import STDOUT, console, print_summary, trial_line
from sweeper.cli.sensitivity import sensitivity_json, sensitivity_table
from sweeper.cli.trial_view import trial_lines
from sweeper.core.codec import encode
from sweeper.errors import EnvironmentStopError, UserError
from sweeper.execution.cluster import jobs_of
from sweeper.sweep.launchers import waiting_sweeps
from sweeper.sweep.phases.preflight import preflight_lines
from sweeper.sweep.store.catalog import all_sweeps, cannot_write, find_sweep
from sweeper.sweep.store.journal import sweeps_folder
from sweeper.sweep.store.load import Listed, listed, load_sweep
from sweeper.sweep.store.lock import is_gone
from sweeper.tables import frame, written


def list_command(home: Path, *, as_json: bool) -> None:
    """Prints the sweeps of a home; a spoilt one costs an error at the end, and none of the others."""
    sweeps, spoilt = [], []
    for journal in all_sweeps(home):
        try:
            sweeps.append(listed(journal))
        except EnvironmentStopError as error:
            spoilt.append(error)
    if as_json:
        found = [{**encode(each), **jobs_of(sweeps_folder(home) / each.name)} for each in sweeps]
        print(json.dumps(found, indent=1))
    else:
        _print_list(home, sweeps, any_spoilt=bool(spoilt))
    if spoilt:
        raise spoilt[0]


def _print_list(home: Path, sweeps: Sequence[Listed], *, any_spoilt: bool) -> None:
    out = console()
    waiting = [folder for folder in waiting_sweeps(home) if not is_gone(folder)]
    for folder in waiting:
        out.print(Text(f"{folder.name:<24} not begun"), soft_wrap=True)
        for said in _job_lines(folder):
            out.print(Text(f"  {said}"), soft_wrap=True)
    if not sweeps and not any_spoilt and not waiting:
        out.print(f"No sweeps in {home} yet. `sweeper run quick` makes one.")
    for each in sweeps:
        confirmed = f"{times(each.ratio)} confirmed" if each.ratio else "nothing confirmed"
        line = f"{each.name:<24} {each.state:<11} {each.trials:>4} trials  {confirmed:<18} {each.device}"
        out.print(Text(line), soft_wrap=True)
        for said in _job_lines(sweeps_folder(home) / each.name):
            out.print(Text(f"  {said}"), soft_wrap=True)


def _job_lines(folder: Path) -> Iterator[str]:
    """Yields the jobs and workers of a sweep that runs on a cluster."""
    found = jobs_of(folder)
    if is_gone(folder):
        # What it wrote last is no longer so.
        if jobs := found.get("jobs"):
            yield f"left behind, to end within a minute: job{'s' if len(jobs) > 1 else ''} {', '.join(jobs)}"
        return
    workers = found.get("workers", [])
    there = {each["job"] for each in workers}
    for each in workers:
        gpu = f", GPU {each['gpu']}" if each["gpu"] else ""
        job = f"job {each['job']}: " if each["job"] else ""
        yield f"{job}{each['host']}{gpu}, {'busy' if each['busy'] else 'idle'}"
    if waiting := [job for job in found.get("jobs", []) if job not in there]:
        yield f"waiting for a place: job{'s' if len(waiting) > 1 else ''} {', '.join(waiting)}"


def show_command(home: Path, name: str, *, as_json: bool) -> None:
    """Prints a sweep's summary and all its trials."""
    sweep = load_sweep(find_sweep(home, name))
    summary = sweep.summary
    if as_json:
        found = to_json(summary, sweep.stages())
        print(json.dumps(encode({**found, "sensitivity": sensitivity_json(sweep.sensitivity)}), indent=1))
        return
    out = console()
    ended = [record for record in summary.records if record.outcome is not None]
    lines = [trial_line(each, sweep.name_of(each), sweep.table.x_baseline(each)) for each in ended]
    if lines:
        # At once: rich takes its time for each call.
        out.print(Text("\n".join(lines)), soft_wrap=True)
    more = [*map(Text, preflight_lines(sweep.journal)), *sensitivity_table(sweep.sensitivity)]
    print_summary(out, summary, home_option(home), more)


def why_command(home: Path, name: str) -> None:
    """Prints where the configuration of each trial came from."""
    sweep = load_sweep(find_sweep(home, name))
    out = console()
    for _, record in sorted(sweep.table.records.items()):
        line = f"  {sweep.name_of(record):<38} {record.origin or 'not kept: it was run by an older version'}"
        out.print(Text(line), soft_wrap=True)


def table_command(home: Path, name: str, form: str, out: Path | None) -> None:
    """Writes a sweep's trials as a table: to standard output, but for Parquet, which is no text."""
    sweep = load_sweep(find_sweep(home, name))
    content = written(frame(sweep), form)
    path = out or (sweep.journal.folder / "trials.parquet" if form == "parquet" else STDOUT)
    if path == STDOUT:
        sys.stdout.buffer.write(content)
        return
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"`--out` must be a file in a folder that exists, but got {str(path)!r}.")
    try:
        path.write_bytes(content)
    except OSError as error:
        raise cannot_write(error, path.parent) from error
    console().print(f"Written to {path}.", soft_wrap=True)


def show_trial_command(home: Path, name: str, number: int, *, as_json: bool) -> None:
    """Prints one trial in full."""
    sweep = load_sweep(find_sweep(home, name))
    record = sweep.table.records.get(number)
    if record is None:
        raise UserError(f"`{name}` has no trial {number}; there are {len(sweep.table.records)}, from 0.")
    if as_json:
        stage = sweep.stages()[number]
        print(json.dumps(encode({**trial_json(record, stage), "outcome": record.outcome}), indent=1))
        return
    out = console()
    stage = sweep.stages()[number]
    for line in trial_lines(record, sweep.name_of(record), stage, sweep.operations(number)):
        out.print(Text(line), soft_wrap=True)
