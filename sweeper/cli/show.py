"""`sweeper show`: prints a sweep's summary and trials."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sweeper.cli.options import Home, Json, Name
from sweeper.cli.screen import columns, console, print_json, say
from sweeper.cli.sensitivity import sensitivity_json, sensitivity_table
from sweeper.cli.summary import print_summary
from sweeper.cli.trial_view import trial_lines
from sweeper.core.home import DEFAULT_HOME, home_option
from sweeper.core.record import TrialRecord
from sweeper.dataframe import frame, render_table
from sweeper.errors import UserError
from sweeper.race.log import Round
from sweeper.results.numbers.summary import to_json, trial_json
from sweeper.results.trial_line import trial_line
from sweeper.sweep.folder.catalog import find_sweep
from sweeper.sweep.folder.load import load_sweep
from sweeper.sweep.phases.preflight import preflight_lines
from sweeper.system.files import STDOUT, writing


def show(
    name: Name,
    home: Home = DEFAULT_HOME,
    as_json: Json = False,
    trial: Annotated[int | None, typer.Option("--trial", metavar="N", help="Show one trial in full.")] = None,
    why: Annotated[
        bool, typer.Option("--why", help="Show where each trial's configuration came from.")
    ] = False,
    form: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="FORMAT", help="Print all trials and metrics: csv, json, parquet, table."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="File for --format, or `-` to print; the default except for parquet.",
        ),
    ] = None,
) -> None:
    """Show a sweep's summary and its trials.

    --json: {"name", "state", "device", "baseline": {"number", "config", "metrics", "notes"} | null,
    "winner": {as the baseline, "ratio", "ratio_low", "ratio_high", ...} | null, "trials": [{"number",
    "outcome": "measured"|"running"|the kind of its failure, "feasible", "verdict", "stage", "config",
    "metrics", "notes", ...}], "sensitivity": [{"name", "value", "ratio", "how": "measured"|"predicted"}],
    "race": [{"round", "trial", "start_seconds", "turns": [{"at", "seconds", "steps", "samples",
    "foreign"}]}]}; with several objectives also "front", "picked" and "rule". With --trial: that trial,
    its outcome as in its outcome.json.

    Example: sweeper show stocks-a10 --trial 7
    """
    if (out is not None and form is None) or (form is not None and (as_json or trial is not None)):
        raise UserError("`--format` excludes `--json` and `--trial`, and `--out` needs `--format`.")
    if why and (as_json or trial is not None or form is not None):
        raise UserError("`--why` excludes other options; `--trial N` and `--json` show the same.")
    if why:
        why_command(home, name)
    elif form is not None:
        table_command(home, name, form, out)
    elif trial is None:
        show_command(home, name, as_json=as_json)
    else:
        show_trial_command(home, name, trial, as_json=as_json)


def show_command(home: Path, name: str, *, as_json: bool) -> None:
    """Prints a sweep's summary and all its trials."""
    sweep = load_sweep(find_sweep(home, name))
    summary = sweep.summary
    if as_json:
        document = to_json(summary, sweep.stages())
        document["sensitivity"] = sensitivity_json(sweep.sensitivity)
        document["race"] = _race_json(sweep.race)
        print_json(document)
        return
    out = console()
    ended = [record for record in summary.records if record.outcome is not None]
    width, equal = columns(out), _equal_metrics(ended)
    lines = [
        trial_line(record, sweep.name_of(record), sweep.table.speedup(record), width, equal)
        for record in ended
    ]
    if lines:
        # In one call, because each call of rich is slow.
        say(out, "\n".join(lines))
    more = [*preflight_lines(sweep.journal), *sensitivity_table(sweep.sensitivity)]
    print_summary(out, summary, home_option(home), more)


def _race_json(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Returns every process of a race, with its turns."""
    return [
        {
            "round": number,
            "trial": arm,
            "start_seconds": life.started.seconds,
            "turns": [
                {name: getattr(turn, name) for name in ("at", "seconds", "steps", "samples", "foreign")}
                for turn in life.turns
            ],
        }
        for number, one in enumerate(rounds)
        for arm, life in sorted(one.lives.items())
    ]


def _equal_metrics(records: Sequence[TrialRecord]) -> set[str]:
    """Returns the pipeline's metrics that are the same in all trials."""
    per_trial = [record.quality.metrics for record in records if record.quality is not None]
    return {
        name
        for name in (per_trial[0] if per_trial else ())
        if len({metrics.get(name) for metrics in per_trial}) == 1
    }


def why_command(home: Path, name: str) -> None:
    """Prints where the configuration of each trial came from."""
    sweep = load_sweep(find_sweep(home, name))
    records, older = sorted(sweep.table.records.items()), "not recorded: run by an older version"
    say(console(), *(f"  {sweep.name_of(one):<38} {one.origin or older}" for _, one in records))


def table_command(home: Path, name: str, form: str, out: Path | None) -> None:
    """Writes a sweep's trials as a table, to standard output unless it is Parquet."""
    sweep = load_sweep(find_sweep(home, name))
    content = render_table(frame(sweep), form)
    path = out or (sweep.journal.folder / "trials.parquet" if form == "parquet" else STDOUT)
    if path == STDOUT:
        sys.stdout.buffer.write(content)
        return
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"`--out` must be a file in a folder that exists, but got {str(path)!r}.")
    with writing(path.parent):
        path.write_bytes(content)
    say(console(), f"Written to {path}.")


def show_trial_command(home: Path, name: str, number: int, *, as_json: bool) -> None:
    """Prints one trial in full."""
    sweep = load_sweep(find_sweep(home, name))
    record = sweep.table.records.get(number)
    if record is None:
        raise UserError(
            f"`{name}` has no trial {number}; it has {len(sweep.table.records)}, numbered from 0."
        )
    stage = sweep.stages()[number]
    if as_json:
        print_json({**trial_json(record, stage), "outcome": record.outcome})
    else:
        say(console(), *trial_lines(record, sweep.name_of(record), stage, sweep.trace_report(number)))
