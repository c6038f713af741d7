"""Adds workers for rows that draw at random, such as augmented images: the same rows, with other draws."""

from __future__ import annotations

import functools
import math
import os
import random
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from .change import DRAWS, LOADER, Change, ChangeRefusedError, Editor, ReportCallback, begin_passes
from .facts import has_loader
from .loader import CORES, check_once, with_more_workers
from .rows.children import be_worker, fault_in_child
from .rows.collating import check_sampler, fetcher, num_rows_of
from .rows.generators import states_held, states_of_all
from .rows.trees import are_equal

CHECK_ROWS, CHECK_SECONDS = 512, 2.0
"""Maximum rows, and seconds, to read twice with the same random numbers."""


class AugmentationWorkers(Change):
    """Uses one worker per core to read rows that draw at random.

    Each worker draws from its own generators, which torch seeds in each pass. If rows depend only on their
    number and those generators, which is checked, they could also result from another seed.
    """

    name = "augmentation_workers"
    choices = (CORES,)
    kind = DRAWS
    why = "one worker per core reads and augments the rows"
    saves = LOADER
    rounding = math.inf

    def refusal(self, value: str, facts: Mapping[str, Any]) -> str:
        """Returns why a value is not tried for a training."""
        if not has_loader(facts):
            return "its batches do not come from a DataLoader"
        workers, cores = facts["num_workers"], len(os.sched_getaffinity(0))
        return f"it already has {workers} workers" if workers >= cores else ""

    def apply(self, torch: Any, value: str, report: ReportCallback) -> None:
        """Changes the passes that begin from now on."""
        cores = len(os.sched_getaffinity(0))
        may_change = check_once(functools.partial(_check, torch), report)

        def begin_pass(loader: Any, original: Callable[[Any], Any]) -> Any:
            if loader.num_workers >= cores or not may_change(loader):
                return original(loader)
            return with_more_workers(original, loader, cores)

        begin_passes(torch, begin_pass)

    def edit(self, editor: Editor) -> None:
        """Sets the number of workers."""
        editor.set_argument("loader", "num_workers", str(len(os.sched_getaffinity(0))))


def _check(torch: Any, loader: Any) -> None:
    """Reads batches twice with the same random numbers.

    Raises:
        ChangeRefusedError: They differ or draw nothing, or the workers would draw the same numbers.
    """
    num_rows = num_rows_of(torch, loader)
    check_sampler(loader)
    if loader.worker_init_fn is not None and not loader.num_workers:
        raise ChangeRefusedError(
            "with workers, its loader would call a `worker_init_fn` that it does not call now"
        )
    if "numpy" in sys.modules and not hasattr(torch.utils.data._utils.worker, "_generate_state"):
        raise ChangeRefusedError("this version of torch does not seed numpy in workers")
    rows = random.Random(0).sample(range(num_rows), min(num_rows, CHECK_ROWS))
    size = loader.batch_size or len(rows)
    fetch = fetcher(torch, loader).fetch

    def read() -> str:
        be_worker(torch, loader, 0, max(1, loader.num_workers))
        deadline_s, draws = time.perf_counter() + CHECK_SECONDS, False
        for begin in range(0, len(rows), size):
            batch = rows[begin : begin + size]
            _seed(torch, begin)
            before, held = states_of_all(), states_held(loader.dataset, loader.collate_fn)
            first = fetch(batch)
            draws = draws or states_of_all() != before
            if states_held(loader.dataset, loader.collate_fn) != held:
                return "its data set has its own random generator, and every worker would get the same copy"
            _seed(torch, begin)
            if not are_equal(torch, first, fetch(batch)):
                return "a batch differs with the same random numbers: its data set has another source of them"
            if time.perf_counter() > deadline_s:
                break
        return "" if draws else "its rows draw no random numbers"

    if why := fault_in_child(torch, loader, read, 10 * CHECK_SECONDS):
        raise ChangeRefusedError(why)


def _seed(torch: Any, seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed)
