"""Showing a sweep as its folder has it: at the end of a run, and whenever it is asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from sweeper.core.record import BASELINE, TrialRecord
from sweeper.sweep.experiment import info_of, note_of
from sweeper.sweep.publish import Publisher, view_of
from sweeper.sweep.store.load import LoadedSweep
from sweeper.system.files import read_json
from sweeper.tracking import RunView, SweepInfo

MADE = "made.json"
"""In a sweep's folder: what was made once it had a result, relative to it."""


def made_files(sweep: LoadedSweep) -> tuple[str, ...]:
    """Returns the paths of what was made when the sweep had its result, as far as it is there."""
    made = sweep.journal.folder / MADE
    paths = [sweep.journal.folder / each for each in (read_json(made) if made.exists() else ())]
    return tuple(str(path) for path in paths if path.is_file())


def info(sweep: LoadedSweep) -> SweepInfo:
    """Returns what a tracker is told of a sweep as its folder has it."""
    finished = sweep.table.finished()
    had = {name for record in finished for name in record.metrics}
    return dataclasses.replace(
        info_of(sweep.journal, sweep.spec, sweep.journal.read()["fingerprint"], sweep.about),
        metrics=tuple(sorted(had)),
        note=note_of(sweep.summary, sweep.decision),
    )


def views(sweep: LoadedSweep, files: Sequence[str] = ()) -> Iterator[tuple[TrialRecord, RunView]]:
    """Yields every finished trial with how it is shown; `files` with the winner, else the baseline."""
    stages, confirmed = sweep.stages(), sweep.confirmations()
    ends = [entry.outcome.finished_at for entry in sweep.journal.rounds("confirm") if entry.outcome]
    winner = (sweep.result or {}).get("winner")
    # `ratios` is sorted; a winner that is tied with a faster one still comes first.
    order = sorted(sweep.ratios(), key=lambda number: number != winner)
    for record in sweep.table.finished():
        number = record.number
        yield (
            record,
            view_of(
                record,
                sweep.varied(),
                sweep.table.x_baseline(record),
                stage=stages[number],
                rank=order.index(number) + 1 if number in order else None,
                confirmation=confirmed.get(number),
                confirmed_at=max(ends, default=0.0),
                files=tuple(files) if number == (BASELINE if winner is None else winner) else (),
            ),
        )


def show(sweep: LoadedSweep, publisher: Publisher, files: Sequence[str]) -> tuple[list[int], str]:
    """Shows every record as it stands; what could not be shown before is tried again.

    Returns:
        The numbers of those that could not be shown, and why.
    """
    publisher.describe(info(sweep))
    for record, view in views(sweep, files):
        publisher.publish(record, view)
    return publisher.flush()
