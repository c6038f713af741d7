"""Keeps the workers of a loader from one pass to the next."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from .change import EXACT, LOADER, Change, ReportCallback, begin_passes, reason_of
from .facts import has_loader
from .rows.kept_workers import KeptWorkers


class PersistentWorkers(Change):
    """Makes workers outlive a pass; each begins the next pass as a new one would.

    torch's own option of this name saves the same starts, but draws one number less in each pass, and its
    workers go on with their generators. So the order of the rows, and what is drawn for them, would differ.
    """

    name = "persistent_workers"
    choices = ("on",)
    kind = EXACT
    why = "workers live on from one pass to the next instead of starting again"
    saves = LOADER
    only_feeds = True
    no_edit = "torch's own persistent workers draw other numbers; use `sweeper exec`"

    def refusal(self, value: str, facts: Mapping[str, Any]) -> str:
        """Returns why a value is not tried for a training."""
        if not has_loader(facts):
            return "its batches do not come from a DataLoader"
        if not facts["num_workers"]:
            return "it has no workers"
        return "its workers are persistent" if facts.get("persistent_workers") else ""

    def apply(self, torch: Any, value: str, report: ReportCallback) -> None:
        """Keeps the workers of the passes that begin from now on, if new ones would read the same."""
        kept: weakref.WeakKeyDictionary[Any, KeptWorkers | None] = weakref.WeakKeyDictionary()

        def begin_pass(loader: Any, original: Callable[[Any], Any]) -> Any:
            if not loader.num_workers or loader.persistent_workers:
                return original(loader)
            is_first = loader not in kept
            try:
                if is_first:
                    kept[loader] = None
                    kept[loader] = KeptWorkers(torch, loader)
                workers = kept[loader]
                if workers is None:
                    return original(loader)
                iterator = workers.begin_pass(loader, original)
            except Exception as error:
                kept[loader] = None
                report(False, reason_of(error), was_applied=not is_first)
                return original(loader)
            if is_first:
                report(True)
            return iterator

        begin_passes(torch, begin_pass)
