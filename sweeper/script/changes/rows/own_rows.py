"""Reads a loader's rows in the training process, as long as its workers would read the same."""

from __future__ import annotations

import contextlib
import copy
import random
import time
from types import ModuleType
from typing import Any

from ..change import ChangeRefusedError, ReportCallback
from . import collating
from .children import fault_in_child
from .trees import are_equal
from .witness import Witness, is_persistent

ALWAYS, PAUSE_SECONDS = 10, 1.0
"""Number of first checks that are made in any case; later ones wait until some seconds have passed."""
CHECK_ROWS, CHECK_SECONDS = 64, 5.0


class OwnRows:
    """The rows of one loader.

    Workers have a copy of the data set: of the beginning of the pass, or of the first pass if they are
    persistent. The training process sees its own changes at once, so the rows are compared with that copy.

    Attributes:
        are_changed: Whether they have differed. A witness reads them from then on; without one, the next
            pass has workers again.
    """

    def __init__(self, torch: Any, loader: Any, report: ReportCallback) -> None:
        self._torch, self._report = torch, report
        self._fetch = collating.fetcher(torch, loader).fetch
        self._witness = Witness(torch, loader) if is_persistent(loader) else None
        self._first: tuple[Any, Any] | None = None
        self._marks: Any = None
        self._num_checks, self._checked_s = 0, 0.0
        self.are_changed = False

    def fetch(self, rows: Any) -> Any:
        """Returns a batch."""
        if self.are_changed and self._witness is not None:
            return self._witness.fetch(rows)
        batch = self._fetch(rows)
        if self._first is None:
            # The script may change its batches. A tensor with a history cannot be copied.
            with contextlib.suppress(RuntimeError):
                self._first = rows, copy.deepcopy(batch)
        return batch

    def begin(self, loader: Any) -> None:
        """Compares the rows as a pass begins, if there was one before."""
        if self._witness is not None and self._first is not None:
            self._check(loader)
        self._first = None

    def end(self, loader: Any) -> None:
        """Compares the rows as a pass ends."""
        if self._first is not None:
            self._check(loader)

    def _check(self, loader: Any) -> None:
        marks, now = _marks(loader.dataset), time.monotonic()
        is_due = self._num_checks < ALWAYS or now - self._checked_s > PAUSE_SECONDS or marks != self._marks
        if self.are_changed or not is_due:
            return
        assert self._first is not None
        rows, expected = self._first
        if self._witness is not None:
            # The rows differ in each process and each pass, whatever the script's seed.
            count = len(loader.dataset)
            rows = random.SystemRandom().sample(range(count), min(count, CHECK_ROWS))
            try:
                expected = self._witness.fetch(rows)
            except ChangeRefusedError as refusal:
                self.are_changed, self._witness = True, None
                self._report(False, str(refusal), was_applied=True)
                return

        def compare() -> str:
            self._torch.utils.data._utils.worker._worker_info = None
            is_same = are_equal(self._torch, expected, self._fetch(rows))
            return "" if is_same else "the training changes its data set, which workers do not see at once"

        why = fault_in_child(self._torch, loader, compare, CHECK_SECONDS)
        self._marks, self._checked_s = marks, time.monotonic()
        self._num_checks += 1
        if why:
            self.are_changed = True
            self._report(False, why, was_applied=True)


def _marks(owner: Any, depth: int = 2) -> Any:
    """Returns what is cheap to compare of an object's attributes; most changes show in it."""
    marks: list[Any] = []
    for name, value in list(getattr(owner, "__dict__", {}).items()):
        if isinstance(value, (int, float, str, type(None))):
            marks.append((name, value))
        elif not isinstance(value, (type, ModuleType)):
            inner = _marks(value, depth - 1) if depth else ()
            marks.append((name, (id(value), _version(value), inner)))
    return tuple(marks)


def _version(value: Any) -> int:
    """Returns how often a tensor was changed in place; 0 if it does not count that, as in inference mode."""
    try:
        return int(value._version)
    except Exception:
        return 0
