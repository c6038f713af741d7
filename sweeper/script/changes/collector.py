"""Changes when Python looks for garbage: between steps, and only among new objects."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from .change import COLLECTIONS, EXACT, NO_EDIT, Change, ReportCallback

FREEZE_AT = 10
"""Number of steps after which what exists is taken to last."""
PAUSE, MIN_PAUSE_SECONDS = 100.0, 1.0
"""Seconds between two collections: this many times what the last one took, and at least."""
MAX_GROWTH, MAX_GROWTH_BYTES = 0.25, 2**29
"""Growth of the process's memory, as a share and in bytes, that is taken for garbage if it exceeds both."""
MIN_SHARE = 0.02
"""Share of the time below which collections are not worth a change."""


class Collector(Change):
    """Freezes the objects that exist after the first steps, and collects garbage between steps alone."""

    name = "collector"
    choices = ("frozen",)
    kind = EXACT
    why = "Python looks for garbage between steps only, and only among objects made since the first steps"
    saves = COLLECTIONS
    no_edit = NO_EDIT

    def refusal(self, value: str, facts: Mapping[str, Any]) -> str:
        """Returns why a value is not tried for a training."""
        share = facts.get("collector_share", 0.0)
        return "" if share >= MIN_SHARE else f"looking for garbage takes {share:.1%} of its time"

    def apply(self, torch: Any, value: str, report: ReportCallback) -> None:
        """Freezes the objects of this process after some steps."""
        steps = _Collections(report)
        sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(lambda *_: steps.step_ended())


class _Collections:
    """The collections of one process."""

    def __init__(self, report: ReportCallback) -> None:
        self._report = report
        self._num_steps, self._is_on = 0, False
        self._due_s = self._checked_s = 0.0
        self._num_bytes = 0

    def step_ended(self) -> None:
        """Freezes what exists, or looks for garbage if that is due."""
        if self._num_steps < FREEZE_AT:
            self._num_steps += 1
            if self._num_steps == FREEZE_AT:
                self._freeze()
        elif self._is_on and (now := time.perf_counter()) >= self._due_s:
            self._collect(now)

    def _freeze(self) -> None:
        if not gc.isenabled():
            self._report(False, "the script has turned the collector off")
            return
        gc.collect()
        gc.freeze()
        gc.disable()
        # Workers that are forked from now on make no steps, and look for garbage as usual.
        os.register_at_fork(after_in_child=gc.enable)
        self._num_bytes, self._is_on = _resident_bytes(), True
        self._report(True)

    def _collect(self, now: float) -> None:
        if gc.isenabled():
            # The script has turned it on: it knows better.
            self._is_on = False
            return
        gc.collect()
        self._due_s = now + max(MIN_PAUSE_SECONDS, PAUSE * (time.perf_counter() - now))
        growth = _resident_bytes() - self._num_bytes
        if growth > max(MAX_GROWTH * self._num_bytes, MAX_GROWTH_BYTES):
            self._is_on = False
            gc.unfreeze()
            gc.enable()
            self._report(
                False,
                f"memory has grown by {growth / 2**20:,.0f} MiB, which may be garbage among older objects",
                was_applied=True,
            )


def _resident_bytes() -> int:
    """Returns the resident memory of this process; 0 if the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0
