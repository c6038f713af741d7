"""Limits the threads of numerical libraries in this process, and checks that rows stay the same."""

from __future__ import annotations

import ctypes
import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from ..change import ChangeRefusedError
from .children import fault_in_child, seed_worker
from .collating import fetcher, num_rows_of
from .trees import are_equal

CHECK_ROWS, CHECK_SECONDS = 256, 2.0
"""Maximum rows, and seconds, to read with one thread and with all."""

VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OPENCV_FOR_THREADS_NUM")
"""Variables that are read by libraries which are loaded later."""

_LIBRARY = re.compile(r"/[^/\n]*(openblas|mkl_rt|blis|gomp|iomp5|libomp)[^/\n]*\.so[^/\n]*$", re.MULTILINE)
_PAIRS = (
    ("scipy_openblas_get_num_threads64_", "scipy_openblas_set_num_threads64_"),
    ("scipy_openblas_get_num_threads", "scipy_openblas_set_num_threads"),
    ("openblas_get_num_threads64_", "openblas_set_num_threads64_"),
    ("openblas_get_num_threads", "openblas_set_num_threads"),
    ("MKL_Get_Max_Threads", "MKL_Set_Num_Threads"),
    ("bli_thread_get_num_threads", "bli_thread_set_num_threads"),
    ("omp_get_max_threads", "omp_set_num_threads"),
)
"""Functions that return and set the number of threads, of one library each."""


class LimitedStart:
    """Takes the place of a loader's `worker_init_fn`: limits a worker to one thread first.

    Attributes:
        original: The script's own function, or None.
    """

    def __init__(self, original: Callable[[int], None] | None) -> None:
        self.original = original

    def __call__(self, number: int) -> None:
        """Limits this process, and starts the worker as the script's own function does."""
        limit_threads()
        if self.original is not None:
            self.original(number)


def limit_threads() -> bool:
    """Limits this process to one thread per operation; returns whether it had more."""
    os.environ.update(dict.fromkeys(VARIABLES, "1"))
    had_more = False
    for number, set_number in _libraries():
        had_more = had_more or number() > 1
        set_number(1)
    if (cv2 := sys.modules.get("cv2")) is not None:
        had_more = had_more or cv2.getNumThreads() > 1
        cv2.setNumThreads(1)
    return had_more


def _libraries() -> Iterator[tuple[Callable[[], int], Callable[[int], None]]]:
    """Yields what returns and sets the number of threads, for each library that is loaded."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            paths = {line.split(maxsplit=5)[5].rstrip("\n") for line in file if _LIBRARY.search(line)}
    except OSError:
        return
    for path in sorted(paths):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for names in _PAIRS:
            if all(hasattr(library, name) for name in names):
                yield getattr(library, names[0]), getattr(library, names[1])
                break


def check_threads(torch: Any, loader: Any) -> None:
    """Reads some rows with all threads and with one, in a child, and checks that they are the same.

    Raises:
        ChangeRefusedError: They differ, or there is only one thread.
    """
    num_rows = num_rows_of(torch, loader)
    rows = random.Random(0).sample(range(num_rows), min(num_rows, CHECK_ROWS))
    size = loader.batch_size or len(rows)
    fetch = fetcher(torch, loader).fetch

    def read() -> str:
        def read_all(until_s: float) -> list[Any]:
            batches = []
            for begin in range(0, len(rows), size):
                seed_worker(torch, 0, loader.num_workers, begin, loader.dataset)
                batches.append(fetch(rows[begin : begin + size]))
                if time.perf_counter() > until_s:
                    break
            return batches

        before = read_all(time.perf_counter() + CHECK_SECONDS)
        # Libraries that the rows use are loaded by now.
        if not limit_threads():
            return "its workers have one thread already"
        after = read_all(time.perf_counter() + 2 * CHECK_SECONDS)
        is_same = all(are_equal(torch, *pair) for pair in zip(before, after))
        return "" if is_same else "a batch differs with one thread, or has parts that are not tensors"

    if num_rows and (why := fault_in_child(torch, loader, read, 10 * CHECK_SECONDS)):
        raise ChangeRefusedError(why)
