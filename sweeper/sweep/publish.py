"""Publishes trial records to the tracker from a background thread; queues those that it cannot take yet."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sweeper.core.codec import encode
from sweeper.core.job import TRACE
from sweeper.core.record import BASELINE, TrialRecord
from sweeper.results.numbers.labels import run_name
from sweeper.results.trial_card import trial_card
from sweeper.results.verdict.bottleneck import verdict_on
from sweeper.sweep.experiment import info_of, note_of
from sweeper.sweep.folder.journal import FINAL_RACE
from sweeper.sweep.folder.load import LoadedSweep
from sweeper.system.failpoints import failpoint
from sweeper.system.files import read_json, write_atomic
from sweeper.tracking import Confirmation, RunView, Sender, SweepInfo, Tracker

MARKER = "publication"
OPEN_SECONDS = 5.0
"""Longest wait in seconds for a server, or for a new database, whose creation would disturb a trial."""
FLUSH_SECONDS = 30.0
CLOSE_SECONDS = 3.0
_SWEEP = ""

OUTPUTS = "outputs.json"
"""File in a sweep's folder that lists the files made once it had a result, by relative path."""


class Publisher:
    """Sends each record once per state; a marker in the record's folder stores the state sent last."""

    def __init__(self, tracker: Tracker, info: SweepInfo, folder: Path, *, thorough: bool = False) -> None:
        """Sends nothing yet.

        Args:
            folder: The sweep's folder.
            thorough: Whether to ignore the markers.
        """
        self._tracker = tracker
        self._info = info
        self._folder = folder
        self._thorough = thorough
        self._sender = Sender()
        self._numbers: dict[str, int] = {}
        self._sent: dict[str, str] = {}

    def open(self) -> None:
        """Creates the experiment."""
        self._put(_SWEEP, self._folder, [encode(self._info)], self._open(self._info), always=True)
        self._sender.wait(OPEN_SECONDS)

    def describe(self, info: SweepInfo) -> None:
        """Updates the experiment, unless the tracker shows the same already."""
        self._info = info
        self._put(_SWEEP, self._folder, [encode(info)], self._open(info))

    def publish(self, record: TrialRecord, view: RunView) -> None:
        """Publishes one record, unless the tracker shows the same already."""
        had = {*self._info.metrics, *record.metrics}
        if len(had) > len(self._info.metrics):
            self.describe(dataclasses.replace(self._info, metrics=tuple(sorted(had))))
        traced = (Path(record.folder) / TRACE).exists()
        files = [hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in view.files]
        plain = encode(dataclasses.replace(view, files=()))
        state = [plain, encode(record.violations), encode(record.quality), traced, files]
        self._numbers[record.uid] = record.number
        self._put(record.uid, Path(record.folder), state, lambda: self._tracker.track(record, view))

    def flush(self, seconds: float = FLUSH_SECONDS) -> tuple[list[int], str]:
        """Retries what could not be published; returns the numbers of missing trials, and why."""
        left = self._sender.drain(seconds)
        return sorted(self._numbers[key] for key in left.pending if key != _SWEEP), left.problem

    def close(self) -> None:
        """Closes the tracker."""
        self._sender.wait(CLOSE_SECONDS)
        self._sender.close()
        self._tracker.close()

    def _open(self, info: SweepInfo) -> Callable[[], None]:
        return lambda: self._tracker.open(info)

    def _put(
        self, key: str, folder: Path, state: list[Any], send: Callable[[], None], *, always: bool = False
    ) -> None:
        marker = folder / MARKER
        digest = hashlib.sha256(json.dumps([*state, self._tracker.place]).encode()).hexdigest()
        if self._sent.get(key) == digest:
            return
        shown = not self._thorough and marker.exists() and marker.read_text(encoding="utf-8") == digest
        if shown and not always:
            return
        if key != _SWEEP and _SWEEP not in self._sent:
            # The tracker needs the sweep first.
            self._put(_SWEEP, self._folder, [encode(self._info)], self._open(self._info), always=True)

        def send_and_mark() -> None:
            send()
            failpoint("sent")
            write_atomic(marker, digest)
            failpoint("marked")

        self._sent[key] = digest
        self._sender.put(key, send_and_mark)


def view_of(
    record: TrialRecord,
    varied: Sequence[str],
    speedup: float | None,
    *,
    stage: str | None = None,
    rank: int | None = None,
    confirmation: Confirmation | None = None,
    confirmed_at: float = 0.0,
    files: tuple[str, ...] = (),
) -> RunView:
    """Returns the view of a record that the tracker shows."""
    note = _trial_card_note(record) if record.measurement is not None else ""
    if record.failure is not None:
        note = f"**{record.failure.kind}**: {record.failure.message}"
    elif record.violations and not record.feasible:
        over = [f"`{name}` by {amount:.1%}" for name, amount in record.violations.items() if amount > 0]
        note = f"Not feasible: over the limit on {', '.join(over)}.\n\n{note}"
    return RunView(
        label=run_name(record.number, record.stage, record.config, varied),
        stage=stage or record.stage,  # type: ignore[arg-type]
        rank=rank,
        speedup=speedup,
        verdict=verdict.kind.value if (verdict := verdict_on(record)) else None,
        contamination=", ".join(record.measurement.contamination) if record.measurement else "",
        confirmation=confirmation,
        confirmed_at=confirmed_at if confirmation else 0.0,
        note=note,
        files=files,
    )


def _trial_card_note(record: TrialRecord) -> str:
    """Returns the trial card as Markdown: text as paragraphs, which wrap, and the tree unchanged."""
    lines = list(trial_card(record))
    tree = [line for line in lines if line.startswith(" ")]
    words = [line for line in lines if not line.startswith(" ")]
    return "\n\n".join([words[0], "\n".join(["```", *tree, "```"]), *words[1:]])


def made_files(sweep: LoadedSweep) -> tuple[str, ...]:
    """Returns the paths of the files that were made once the sweep had a result, if they still exist."""
    listing = sweep.journal.folder / OUTPUTS
    paths = [sweep.journal.folder / name for name in (read_json(listing) if listing.exists() else ())]
    return tuple(str(path) for path in paths if path.is_file())


def sweep_info(sweep: LoadedSweep) -> SweepInfo:
    """Returns the description of a loaded sweep for the tracker."""
    finished = sweep.table.finished_trials()
    had = {name for record in finished for name in record.metrics}
    return dataclasses.replace(
        info_of(sweep.journal, sweep.spec, sweep.journal.read_sweep_file()["fingerprint"], sweep.about),
        metrics=tuple(sorted(had)),
        note=note_of(sweep.summary),
    )


def run_views(sweep: LoadedSweep, files: Sequence[str] = ()) -> Iterator[tuple[TrialRecord, RunView]]:
    """Yields every finished trial with its view.

    Args:
        files: Paths of files to show with the winner or, without one, with the baseline.
    """
    stages, confirmed = sweep.stages(), sweep.confirmations()
    ends = [entry.outcome.finished_at for entry in sweep.journal.race_jobs(FINAL_RACE) if entry.outcome]
    winner = sweep.confirmation.winner
    # `ratios` is sorted, but a winner that is tied with a faster trial still comes first.
    order = sorted(sweep.ratios(), key=lambda number: number != winner)
    for record in sweep.table.finished_trials():
        number = record.number
        yield (
            record,
            view_of(
                record,
                sweep.varied_names(),
                sweep.table.speedup(record),
                stage=stages[number],
                rank=order.index(number) + 1 if number in order else None,
                confirmation=confirmed.get(number),
                confirmed_at=max(ends, default=0.0),
                files=tuple(files) if number == (BASELINE if winner is None else winner) else (),
            ),
        )


def publish_sweep(sweep: LoadedSweep, publisher: Publisher, files: Sequence[str]) -> tuple[list[int], str]:
    """Publishes every record as it is now, and retries those that failed before.

    Returns:
        The numbers of the trials that could not be published, and why.
    """
    publisher.describe(sweep_info(sweep))
    for record, view in run_views(sweep, files):
        publisher.publish(record, view)
    return publisher.flush()
