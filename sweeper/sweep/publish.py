"""Showing the sweep's records through its tracker, behind its back; what cannot be shown now waits."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sweeper.analysis.bottleneck import verdict_on
from sweeper.analysis.labels import run_name
from sweeper.analysis.trial_card import card
from sweeper.core.codec import encode
from sweeper.core.job import TRACE
from sweeper.core.record import TrialRecord
from sweeper.system.failpoints import passing
from sweeper.system.files import write_atomic
from sweeper.tracking import Confirmation, RunView, Sender, SweepInfo, Tracker

MARKER = "tracked"
OPEN_SECONDS = 5.0
"""A database is made before the first trial, which its making would disturb; a server is not waited for."""
FLUSH_SECONDS = 30.0
CLOSE_SECONDS = 3.0
_SWEEP = ""


class Publisher:
    """Sends each record once for every state it comes to; a marker in its folder remembers which."""

    def __init__(self, tracker: Tracker, info: SweepInfo, folder: Path, *, thorough: bool = False) -> None:
        """Sends nothing yet.

        Args:
            folder: The sweep's.
            thorough: Markers are not believed.
        """
        self._tracker = tracker
        self._info = info
        self._folder = folder
        self._thorough = thorough
        self._sender = Sender()
        self._numbers: dict[str, int] = {}
        self._sent: dict[str, str] = {}

    def open(self) -> None:
        """Has the experiment made."""
        self._put(_SWEEP, self._folder, [encode(self._info)], self._open(self._info), always=True)
        self._sender.wait(OPEN_SECONDS)

    def describe(self, info: SweepInfo) -> None:
        """Has the experiment brought up to date, unless it is shown like this already."""
        self._info = info
        self._put(_SWEEP, self._folder, [encode(info)], self._open(info))

    def publish(self, record: TrialRecord, view: RunView) -> None:
        """Has one record shown, unless it is shown like this already."""
        had = {*self._info.metrics, *record.metrics}
        if len(had) > len(self._info.metrics):
            self.describe(dataclasses.replace(self._info, metrics=tuple(sorted(had))))
        traced = (Path(record.folder) / TRACE).exists()
        files = [hashlib.sha256(Path(each).read_bytes()).hexdigest() for each in view.files]
        plain = encode(dataclasses.replace(view, files=()))
        state = [plain, encode(record.violations), encode(record.quality), traced, files]
        self._numbers[record.uid] = record.number
        self._put(record.uid, Path(record.folder), state, lambda: self._tracker.track(record, view))

    def flush(self, seconds: float = FLUSH_SECONDS) -> tuple[list[int], str]:
        """Tries once more whatever could not be shown; returns the numbers still to be shown, and why."""
        left = self._sender.drain(seconds)
        return sorted(self._numbers[key] for key in left.pending if key != _SWEEP), left.problem

    def close(self) -> None:
        """Lets go of the tracker."""
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
            # The tracker must be told of the sweep first.
            self._put(_SWEEP, self._folder, [encode(self._info)], self._open(self._info), always=True)

        def sent() -> None:
            send()
            passing("sent")
            write_atomic(marker, digest)
            passing("marked")

        self._sent[key] = digest
        self._sender.put(key, sent)


def view_of(
    record: TrialRecord,
    varied: Sequence[str],
    x_baseline: float | None,
    *,
    stage: str | None = None,
    rank: int | None = None,
    confirmation: Confirmation | None = None,
    confirmed_at: float = 0.0,
    files: tuple[str, ...] = (),
) -> RunView:
    """Returns how a record is shown."""
    note = _card_note(record) if record.measurement is not None else ""
    if record.failure is not None:
        note = f"**{record.failure.kind}**: {record.failure.message}"
    elif record.violations and not record.feasible:
        over = [f"`{name}` by {amount:.1%}" for name, amount in record.violations.items() if amount > 0]
        note = f"Not feasible: beyond the limit on {', '.join(over)}.\n\n{note}"
    return RunView(
        label=run_name(record.number, record.stage, record.config, varied),
        stage=stage or record.stage,  # type: ignore[arg-type]
        rank=rank,
        x_baseline=x_baseline,
        verdict=verdict.kind.value if (verdict := verdict_on(record)) else None,
        contamination=", ".join(record.measurement.contamination) if record.measurement else "",
        confirmation=confirmation,
        confirmed_at=confirmed_at if confirmation else 0.0,
        note=note,
        files=files,
    )


def _card_note(record: TrialRecord) -> str:
    """Returns the card as Markdown: words as paragraphs, which wrap, and the tree as it stands."""
    lines = list(card(record))
    tree = [line for line in lines if line.startswith(" ")]
    words = [line for line in lines if not line.startswith(" ")]
    return "\n\n".join([words[0], "\n".join(["```", *tree, "```"]), *words[1:]])
