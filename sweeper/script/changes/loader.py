"""Changes how batches are made: from collated data, from rows that are read at once, or by other workers."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from .change import EXACT, LOADER, Change, Editor, ReportCallback, begin_passes, reason_of
from .facts import has_loader, is_on_gpu
from .rows import collating
from .rows.gathered import gather, iterator_class
from .rows.generators import DRAWS
from .rows.own_rows import OwnRows
from .rows.together import read_together

ON_DEVICE, GATHERED, BATCHED = "on_device", "gathered", "batched"
NO_WORKERS, CORES = "no_workers", "cores"
COLLATED = (ON_DEVICE, GATHERED)
"""Values with which the data set is collated once."""


class LoaderChange(Change):
    """Makes loaders gather batches from the collated data set, read rows together, or use other workers."""

    name = "loader"
    choices = (ON_DEVICE, GATHERED, BATCHED, NO_WORKERS, CORES)
    kind = EXACT
    why = "batches are gathered from collated data, their rows are read at once, or by other workers"
    saves = LOADER
    only_feeds = True
    shared_refusals = frozenset({DRAWS})

    def refusal(self, value: str, facts: Mapping[str, Any]) -> str:
        """Returns why a value is not tried for a training."""
        if not has_loader(facts):
            return "its batches do not come from a DataLoader"
        if value == ON_DEVICE and not is_on_gpu(facts):
            return "it does not train on a GPU"
        workers = facts["num_workers"]
        if value == NO_WORKERS and not workers:
            return "it has no workers"
        cores = len(os.sched_getaffinity(0))
        if value == CORES and workers == cores:
            return f"it already has {cores} workers"
        return ""

    def apply(self, torch: Any, value: str, report: ReportCallback) -> None:
        """Changes the passes that begin from now on, if their samples stay the same."""
        if value in COLLATED:
            gather(torch, report, on_device=value == ON_DEVICE)
        elif value == BATCHED:
            read_together(torch, report)
        else:
            _change_workers(torch, value, report)

    def edit(self, editor: Editor) -> None:
        """Puts the data set into memory, or sets the number of workers."""
        if editor.value == ON_DEVICE:
            editor.refuse("the source does not say on which GPU the rows belong; use `sweeper exec`")
        elif editor.value == GATHERED:
            editor.gather_batches()
        elif editor.value == BATCHED:
            editor.refuse("the source does not say which class reads the rows; use `sweeper exec`")
        elif editor.value == NO_WORKERS:
            editor.use_no_workers()
        else:
            editor.set_argument("loader", "num_workers", str(len(os.sched_getaffinity(0))))


def check_once(check: Callable[[Any], None], report: ReportCallback) -> Callable[[Any], bool]:
    """Returns a function that says whether a loader passes a check; runs and reports it once per loader."""
    results: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()

    def passes(loader: Any) -> bool:
        if loader not in results:
            try:
                check(loader)
                results[loader] = True
                report(True)
            except Exception as error:
                results[loader] = False
                report(False, reason_of(error))
        return results[loader]

    return passes


def _change_workers(torch: Any, value: str, report: ReportCallback) -> None:
    """Makes the training process read the rows, or as many workers as there are cores."""
    reading = iterator_class(torch)
    wanted = 0 if value == NO_WORKERS else len(os.sched_getaffinity(0))

    def check(loader: Any) -> None:
        """Checks that the rows of a loader are the same in any process."""
        if wanted:
            collating.check_sampler(loader)
        collating.check_rows(torch, loader)

    is_free = check_once(check, report)
    rows: weakref.WeakKeyDictionary[Any, OwnRows] = weakref.WeakKeyDictionary()

    def begin_pass(loader: Any, original: Callable[[Any], Any]) -> Any:
        if loader.num_workers == wanted or not is_free(loader):
            return original(loader)
        if not wanted:
            loader_rows = rows.get(loader) or rows.setdefault(loader, OwnRows(torch, loader, report))
            return original(loader) if loader_rows.are_changed else reading(loader, own_rows=loader_rows)
        return with_more_workers(original, loader, wanted)

    begin_passes(torch, begin_pass)


def with_more_workers(original: Callable[[Any], Any], loader: Any, count: int) -> Any:
    """Returns an iterator of a loader with `count` workers; the loader stays as it was."""
    before = loader.num_workers, loader.prefetch_factor
    loader.num_workers, loader.prefetch_factor = count, before[1] or 2
    try:
        return original(loader)
    finally:
        loader.num_workers, loader.prefetch_factor = before
