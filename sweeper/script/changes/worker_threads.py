"""Lets each worker of a loader compute in one thread."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from .change import EXACT, LOADER, NO_EDIT, Change, ReportCallback, begin_passes, reason_of
from .facts import has_loader
from .rows.threads import LimitedStart, check_threads


class WorkerThreads(Change):
    """Keeps BLAS, OpenMP and OpenCV in a loader's workers from starting a thread per core in each of them.

    torch's own operations have one thread in a worker already.
    """

    name = "worker_threads"
    choices = ("one",)
    kind = EXACT
    why = "workers compute in one thread each instead of one per core"
    saves = LOADER
    only_feeds = True
    no_edit = NO_EDIT

    def refusal(self, value: str, facts: Mapping[str, Any]) -> str:
        """Returns why a value is not tried for a training."""
        if not has_loader(facts):
            return "its batches do not come from a DataLoader"
        return "" if facts["num_workers"] else "it has no workers"

    def apply(self, torch: Any, value: str, report: ReportCallback) -> None:
        """Limits the workers that are started from now on, if their rows stay the same."""
        starts: weakref.WeakKeyDictionary[Any, LimitedStart | None] = weakref.WeakKeyDictionary()

        def begin_pass(loader: Any, original: Callable[[Any], Any]) -> Any:
            if not loader.num_workers:
                return original(loader)
            if loader not in starts:
                starts[loader] = None
                try:
                    check_threads(torch, loader)
                    starts[loader] = LimitedStart(loader.worker_init_fn)
                    report(True)
                except Exception as error:
                    report(False, reason_of(error))
            start, before = starts[loader], loader.worker_init_fn
            if start is None or start.original is not before:
                return original(loader)
            loader.worker_init_fn = start
            try:
                return original(loader)
            finally:
                loader.worker_init_fn = before

        begin_passes(torch, begin_pass)
