"""`sweeper list`: prints the sweeps in a state folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from sweeper.cli.options import Home, Json
from sweeper.cli.screen import console, print_json, say
from sweeper.core.codec import encode
from sweeper.core.home import DEFAULT_HOME
from sweeper.errors import EnvironmentStopError
from sweeper.launch.cluster import jobs_of
from sweeper.results.formatting import times
from sweeper.sweep.folder.catalog import all_sweeps
from sweeper.sweep.folder.journal import sweeps_folder
from sweeper.sweep.folder.load import ListedSweep, listed_sweep
from sweeper.sweep.folder.lock import is_gone
from sweeper.sweep.start.launchers import waiting_sweeps


def list(home: Home = DEFAULT_HOME, as_json: Json = False) -> None:
    """List sweeps, the latest first.

    --json: [{"name", "state": "finished"|"stopped"|"unfinished", "device", "trials", "ratio" | null,
    "is_provisional"}]; of a sweep that runs on a cluster also "jobs": [IDs],
    "workers": [{"host", "gpu", "job", "busy"}]

    Example: sweeper list
    """
    sweeps, damaged = [], []
    for journal in all_sweeps(home):
        try:
            sweeps.append(listed_sweep(journal))
        except EnvironmentStopError as error:
            damaged.append(error)
    if as_json:
        print_json([{**encode(sweep), **jobs_of(sweeps_folder(home) / sweep.name)} for sweep in sweeps])
    else:
        _print_list(home, sweeps, any_damaged=bool(damaged))
    if damaged:
        raise damaged[0]


def _print_list(home: Path, sweeps: Sequence[ListedSweep], *, any_damaged: bool) -> None:
    out = console()
    waiting = [folder for folder in waiting_sweeps(home) if not is_gone(folder)]
    for folder in waiting:
        say(out, f"{folder.name:<24} not started", *_job_lines(folder))
    if not sweeps and not any_damaged and not waiting:
        out.print(f"No sweeps in {home} yet. Start one with `sweeper run quick`.")
    for sweep in sweeps:
        how = "so far" if sweep.is_provisional else "confirmed"
        gain = f"{times(sweep.ratio)} {how}" if sweep.ratio else "nothing confirmed"
        line = f"{sweep.name:<24} {sweep.state:<11} {sweep.trials:>4} trials  {gain:<18} {sweep.device}"
        say(out, line, *_job_lines(sweeps_folder(home) / sweep.name))


def _job_lines(folder: Path) -> Iterator[str]:
    """Yields the jobs and workers of a sweep that runs on a cluster."""
    status = jobs_of(folder)
    if is_gone(folder):
        # Its last status is out of date.
        if jobs := status.get("jobs"):
            plural = "s" if len(jobs) > 1 else ""
            yield f"  left behind, ending within a minute: job{plural} {', '.join(jobs)}"
        return
    workers = status.get("workers", [])
    there = {worker["job"] for worker in workers}
    for worker in workers:
        gpu = f", GPU {worker['gpu']}" if worker["gpu"] else ""
        job = f"job {worker['job']}: " if worker["job"] else ""
        yield f"  {job}{worker['host']}{gpu}, {'busy' if worker['busy'] else 'idle'}"
    if waiting := [job for job in status.get("jobs", []) if job not in there]:
        yield f"  waiting to start: job{'s' if len(waiting) > 1 else ''} {', '.join(waiting)}"
