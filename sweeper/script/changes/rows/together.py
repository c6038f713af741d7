"""Reads all rows of a batch at once: the data set is asked with an array of row numbers, not one by one.

    rows of [3, 1, 2]      [data[3], data[1], data[2]], then collated
    together               data[array([3, 1, 2])], whose parts are the batch

Rows that are computed for each row number alone, such as `self.x[i] / 255`, are the same either way. Others
raise, or differ from the rows in a comparison; then they are read one by one.
"""

from __future__ import annotations

import functools
import random
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from ..change import ChangeRefusedError, ReportCallback, begin_passes, reason_of
from .children import fault_in_child
from .collating import num_rows_of
from .generators import DRAWS, states
from .trees import are_equal

FIRST_ROWS, FIRST_SECONDS = 8192, 2.0
"""Maximum rows, and seconds, to read both ways before the first pass."""
CHECK_ROWS, CHECK_SECONDS = 256, 0.25
"""Maximum rows, and seconds, to read both ways before each later one."""


def read_together(torch: Any, report: ReportCallback) -> None:
    """Makes the passes that begin from now on read the rows of a batch together, if the batches are equal."""
    readers: weakref.WeakKeyDictionary[Any, _Reader | None] = weakref.WeakKeyDictionary()
    by_dataset: dict[int, _Reader] = {}
    _wrap_fetchers(torch, by_dataset)

    def begin_pass(loader: Any, original: Callable[[Any], Any]) -> Any:
        is_first = loader not in readers
        if is_first:
            readers[loader] = None
            try:
                readers[loader] = _Reader(torch, loader)
            except Exception as error:
                report(False, reason_of(error))
        reader = readers[loader]
        if reader is not None:
            rows, seconds = (FIRST_ROWS, FIRST_SECONDS) if is_first else (CHECK_ROWS, CHECK_SECONDS)
            if why := reader.find_difference(loader, rows, seconds):
                by_dataset.pop(id(loader.dataset), None)
                readers[loader] = None
                report(False, why, was_applied=not is_first)
            elif is_first:
                by_dataset[id(loader.dataset)] = reader
                report(True)
        return original(loader)

    begin_passes(torch, begin_pass)


def _wrap_fetchers(torch: Any, by_dataset: dict[int, _Reader]) -> None:
    """Makes torch's fetchers, also those of workers, ask a reader for a batch if there is one."""
    fetchers = torch.utils.data._utils.fetch._MapDatasetFetcher
    original = fetchers.fetch

    @functools.wraps(original)
    def fetch(fetcher: Any, rows: Any) -> Any:
        reader = by_dataset.get(id(fetcher.dataset))
        if reader is None or not reader.is_of(fetcher) or type(rows) is not list:
            return original(fetcher, rows)
        try:
            return reader.read(rows)
        except Exception:
            # As the script's own reading would raise it, or not.
            return original(fetcher, rows)

    fetchers.fetch = fetch


class _Reader:
    """Reads batches of one data set together."""

    def __init__(self, torch: Any, loader: Any) -> None:
        """Prepares to read the rows of a loader.

        Raises:
            ChangeRefusedError: It has no rows in batches, or its data set reads several at once by itself.
        """
        self._torch, self._dataset, self._collate = torch, weakref.ref(loader.dataset), loader.collate_fn
        self._num_rows = num_rows_of(torch, loader)
        if not self._num_rows:
            raise ChangeRefusedError("its data set is empty")
        if getattr(loader.dataset, "__getitems__", None):
            raise ChangeRefusedError("its data set reads the rows of a batch together by itself")
        self._is_default = loader.collate_fn is torch.utils.data._utils.collate.default_collate

    def is_of(self, fetcher: Any) -> bool:
        """Returns whether a fetcher reads this data set in batches, and collates them in the same way."""
        is_same = fetcher.dataset is self._dataset() and fetcher.collate_fn is self._collate
        return is_same and bool(fetcher.auto_collation)

    def read(self, rows: Sequence[int]) -> Any:
        """Returns the batch of some rows.

        Raises:
            ChangeRefusedError: What the data set returns for them has parts that are not one row for each.
            Exception: The data set cannot be asked for several rows.
        """
        dataset: Any = self._dataset()
        numpy = sys.modules.get("numpy")
        index = self._torch.tensor(rows) if numpy is None else numpy.array(rows)
        whole = self._tensors(dataset[index], len(rows))
        if self._is_default:
            return whole
        return self._collate([_row(whole, number) for number in range(len(rows))])

    def _tensors(self, part: Any, count: int) -> Any:
        """Returns a part of what the data set has returned as `default_collate` would have made it."""
        kind, numpy = type(part), sys.modules.get("numpy")
        if kind is dict:
            return {key: self._tensors(inner, count) for key, inner in part.items()}
        if kind in (tuple, list):
            inner = [self._tensors(inner, count) for inner in part]
            # The collation of tuples is a list; rows for the script's own are as the data set has them.
            return inner if self._is_default else kind(inner)
        if numpy is not None and isinstance(part, numpy.ndarray):
            part = self._torch.from_numpy(numpy.ascontiguousarray(part)) if self._is_default else part
        elif kind is not self._torch.Tensor:
            raise ChangeRefusedError(f"its rows, read together, have parts of type {kind.__name__}")
        if not part.ndim or len(part) != count:
            raise ChangeRefusedError("its rows, read together, are not one for each row number")
        return part

    def find_difference(self, loader: Any, max_rows: int, seconds: float) -> str:
        """Returns how batches that are read together differ; empty if a sample of them does not.

        Args:
            max_rows: Maximum number of rows to read both ways.
            seconds: Seconds after which no further batch is read.
        """
        count = min(self._num_rows, max_rows)
        # The rows differ in each process and each pass, whatever the script's seed.
        rows = [0, self._num_rows - 1, *random.SystemRandom().sample(range(self._num_rows), count)]
        size = loader.batch_size or len(rows)

        def compare() -> str:
            before = states(loader.dataset, loader.collate_fn)
            until_s = time.perf_counter() + seconds
            for begin in range(0, len(rows), size):
                batch = rows[begin : begin + size]
                one_by_one = loader.collate_fn([loader.dataset[row] for row in batch])
                if states(loader.dataset, loader.collate_fn) != before:
                    return DRAWS
                try:
                    together = self.read(batch)
                except ChangeRefusedError as refusal:
                    return str(refusal)
                except Exception as error:
                    return f"its rows cannot be read together ({type(error).__name__}: {error})"[:300]
                if not are_equal(self._torch, one_by_one, together):
                    return "its rows, read together, differ from the same rows read one by one"
                if time.perf_counter() > until_s:
                    break
            return ""

        return fault_in_child(self._torch, loader, compare, 10 * max(seconds, FIRST_SECONDS))


def _row(whole: Any, number: int) -> Any:
    """Returns one row of what a data set has returned for several."""
    if isinstance(whole, dict):
        return {key: _row(part, number) for key, part in whole.items()}
    if isinstance(whole, (tuple, list)):
        return type(whole)(_row(part, number) for part in whole)
    return whole[number]
