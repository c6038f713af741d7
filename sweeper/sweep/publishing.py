"""Showing the sweep's records through its tracker; what cannot be shown now waits for later."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from sweeper.analysis.card import card
from sweeper.analysis.labels import run_name
from sweeper.core.codec import encode
from sweeper.core.errors import StorageError
from sweeper.core.files import write_atomic
from sweeper.core.job import TRACE
from sweeper.core.record import TrialRecord
from sweeper.tracking import Confirmation, RunView, SweepInfo, Tracker

MARKER = "tracked"


class Publisher:
    """Sends each record once for every state it comes to; a marker in its folder remembers which.

    Attributes:
        pending: Numbers of the trials that are not shown as they are now.
    """

    def __init__(self, tracker: Tracker, info: SweepInfo) -> None:
        self._tracker = tracker
        self._info = info
        self.pending: set[int] = set()
        self.problem = ""
        self._opened = False

    def open(self) -> None:
        """Makes the experiment, if it can be reached."""
        self._opened = True
        self._try(lambda: self._tracker.open(self._info))

    def publish(self, record: TrialRecord, view: RunView) -> None:
        """Shows one record, unless it is shown like this already."""
        marker = Path(record.folder) / MARKER
        traced = (Path(record.folder) / TRACE).exists()
        state = hashlib.sha256(
            json.dumps([encode(view), encode(record.violations), encode(record.quality), traced]).encode()
        ).hexdigest()
        if marker.exists() and marker.read_text(encoding="utf-8") == state:
            return
        self.pending.add(record.number)
        if not self._opened:
            self.open()
        # A server that is away is asked again at the end, not with every trial.
        if self.problem:
            return
        if self._try(lambda: self._tracker.track(record, view)):
            self.pending.discard(record.number)
            write_atomic(marker, state)

    def retry(self) -> None:
        """Lets the next `publish` try again."""
        self.problem = ""

    def _try(self, send: Callable[[], None]) -> bool:
        try:
            send()
        except StorageError as error:
            self.problem = str(error)
            return False
        return True

    def close(self) -> None:
        """Lets go of the tracker."""
        self._tracker.close()


def view_of(
    record: TrialRecord,
    varied: Sequence[str],
    x_baseline: float | None,
    *,
    stage: str | None = None,
    rank: int | None = None,
    confirmation: Confirmation | None = None,
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
        verdict=record.verdict.kind.value if record.verdict else None,
        contamination=", ".join(record.measurement.contamination) if record.measurement else "",
        confirmation=confirmation,
        note=note,
    )


def _card_note(record: TrialRecord) -> str:
    """Returns the card as Markdown: words as paragraphs, which wrap, and the tree as it stands."""
    lines = list(card(record))
    tree = [line for line in lines if line.startswith(" ")]
    words = [line for line in lines if not line.startswith(" ")]
    return "\n\n".join([words[0], "\n".join(["```", *tree, "```"]), *words[1:]])
