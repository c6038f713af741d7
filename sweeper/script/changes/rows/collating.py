"""Collates a whole data set once, if that gives the same batches.

All rows are read in child processes, as a loader's workers would read them, so that neither the generators
nor the data set of the script's process change. The children compare batches gathered from the collated rows
with those of the script's own `collate_fn`; types are no proof.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..change import ChangeRefusedError
from .children import be_worker, fault_in_child, result_of_child, results_of_children
from .dataset_file import KEPT_VARIABLE, DatasetFile, key_of
from .generators import DRAWS, states
from .trees import are_equal, build_batch, split_batch

BLOCK_ROWS = 1024
FIRST_ROWS = 256
"""Number of first rows from which the memory and time of all rows are estimated."""

MAX_SECONDS = 60.0
"""Maximum seconds to collate a data set; one that would take longer is not collated."""

MAX_MEMORY_SHARE = 0.25
"""Maximum share of the available memory."""

AGAIN_ROWS = 20_000
"""Number of rows read a second time: a change with a probability of 0.001 is missed once in 10^8 cases."""

CHECK_ROWS, CHECK_SECONDS = 256, 0.25
"""Maximum rows, and seconds, to read again at each pass, since a data set may change with the epoch."""

CHECK_WORKERS_ROWS, CHECK_WORKERS_S = 4096, 2.0
"""Maximum rows, and seconds, to read both as a worker and as the training process."""

MAX_CHILDREN = 8

MAX_KEY_SECONDS = 5.0
"""Maximum seconds for a digest of the data set."""

ALIGNMENT = 64
"""Each tensor begins at a multiple of this number of bytes."""


class CollatedRows:
    """All rows of a data set, collated.

    Attributes:
        tree: Structure of a batch (`sweeper.script.changes.rows.trees`).
        leaves: Its tensors, each with all rows.
        num_bytes: Bytes of its tensors.
    """

    def __init__(self, torch: Any, tree: Any, leaves: Sequence[Any], num_rows: int, row_s: float) -> None:
        self._torch, self.tree, self.leaves = torch, tree, leaves
        self._num_rows, self._row_s = num_rows, row_s
        self.num_bytes = sum(leaf.numel() * leaf.element_size() for leaf in leaves)

    def gather(self, indices: Any, *, pinned: bool = False) -> Any:
        """Returns the batch of the rows `indices`; None if they are not row numbers.

        Args:
            pinned: Whether it is gathered right into page-locked memory, without another copy.
        """
        index = self.index_of(indices)
        if index is None:
            return None
        return build_batch(self.tree, iter([self._rows(leaf, index, pinned) for leaf in self.leaves]))

    def index_of(self, indices: Any) -> Any:
        """Returns row numbers as a tensor; None if they are not a list of row numbers."""
        if type(indices) is not list or not indices:
            return None
        try:
            index = self._torch.tensor(indices)
        except (TypeError, ValueError, RuntimeError):
            return None
        is_index = index.dim() == 1 and index.dtype == self._torch.int64
        return index if is_index and self._has(indices) else None

    def _rows(self, leaf: Any, index: Any, pinned: bool) -> Any:
        if not pinned:
            return leaf.index_select(0, index)
        rows = self._torch.empty((len(index), *leaf.shape[1:]), dtype=leaf.dtype, pin_memory=True)
        return self._torch.index_select(leaf, 0, index, out=rows)

    def _has(self, indices: Sequence[int]) -> bool:
        return min(indices) >= 0 and max(indices) < self._num_rows

    def find_change(self, loader: Any, witness: Any = None) -> str:
        """Returns how the data set has changed; empty if a sample of its rows has not.

        Args:
            witness: The data set as persistent workers have it; by default, it is as it is now.
        """
        count = min(self._num_rows, CHECK_ROWS, max(2, int(CHECK_SECONDS / max(self._row_s, 1e-9))))
        # The rows differ in each process and each pass, whatever the script's seed.
        rows = random.SystemRandom().sample(range(self._num_rows), count)

        def compare() -> str:
            fetch = fetcher(self._torch, loader).fetch if witness is None else witness.fetch
            return _find_difference(self._torch, self, rows, fetch, loader.batch_size or len(rows))

        if witness is not None:
            try:
                return compare()
            except ChangeRefusedError as refusal:
                return str(refusal)
        return fault_in_child(self._torch, loader, compare, 20 * CHECK_SECONDS)


def fetcher(torch: Any, loader: Any) -> Any:
    """Returns torch's own fetcher of a loader's batches."""
    return torch.utils.data.dataloader._DatasetKind.create_fetcher(
        loader._dataset_kind, loader.dataset, loader._auto_collation, loader.collate_fn, loader.drop_last
    )


def collate(torch: Any, loader: Any) -> CollatedRows:
    """Returns the collated data set of a loader.

    Raises:
        ChangeRefusedError: It cannot be collated once, would take too long, or does not fit into memory.
    """
    num_rows = num_rows_of(torch, loader)
    if not num_rows:
        raise ChangeRefusedError("its data set is empty")
    kept = DatasetFile(digest_of(torch, loader))
    # Other ranks of the training wait, and find what this one stores.
    with kept.alone():
        if (contents := kept.read()) is not None:
            whole = _rows_in(torch, *contents)
            # An earlier process has compared the batches; the data themselves may have changed since.
            if not whole.find_change(loader):
                return whole
        return _collate_anew(torch, loader, num_rows, kept)


def _collate_anew(torch: Any, loader: Any, num_rows: int, kept: DatasetFile) -> CollatedRows:
    first = min(num_rows, FIRST_ROWS)
    fetch = fetcher(torch, loader).fetch

    def look() -> Any:
        began_s = time.perf_counter()
        leaves: list[Any] = []
        tree = split_batch(torch, fetch(list(range(first))), leaves, first)
        shapes = [(str(leaf.dtype), leaf.shape[1:]) for leaf in leaves]
        return tree, shapes, (time.perf_counter() - began_s) / first

    tree, shapes, row_s = result_of_child(torch, loader, look, MAX_SECONDS)
    children = min(len(os.sched_getaffinity(0)), MAX_CHILDREN) if loader.num_workers else 1
    # All rows are read once, and some again.
    seconds = row_s * (num_rows + min(num_rows, AGAIN_ROWS)) / children
    if seconds > MAX_SECONDS:
        raise ChangeRefusedError(
            f"collating its {num_rows:,} rows would take {seconds:.0f} s, more than {MAX_SECONDS:.0f}"
        )
    size = max((end for _, end in _ranges(torch, shapes, num_rows)), default=0)
    room = MAX_MEMORY_SHARE * available_bytes()
    if size > room:
        raise ChangeRefusedError(
            f"its {num_rows:,} rows take {size / 2**30:.2f} GiB, more than"
            f" {room / 2**30:.2f} GiB, a quarter of the free memory"
        )
    about = {"tree": tree, "shapes": shapes, "num_rows": num_rows, "row_s": row_s}
    whole = _rows_in(torch, about, kept.room(size))
    ends = [num_rows * number // children for number in range(children + 1)]
    try:
        works = [
            _filler(torch, loader, whole, range(begin, end))
            for begin, end in zip(ends, ends[1:])
            if end > begin
        ]
        for fault in filter(None, results_of_children(torch, loader, works, 3 * MAX_SECONDS)):
            raise ChangeRefusedError(fault)
    except ChangeRefusedError:
        kept.drop()
        raise
    kept.keep(about)
    return whole


def num_rows_of(torch: Any, loader: Any) -> int:
    """Returns how many rows a loader's data set has.

    Raises:
        ChangeRefusedError: It has no rows that are collated into batches, or no length.
    """
    if loader._dataset_kind != torch.utils.data.dataloader._DatasetKind.Map or not loader._auto_collation:
        raise ChangeRefusedError("its data come as a stream, or not in batches")
    try:
        num_rows = len(loader.dataset)
    except TypeError as error:
        raise ChangeRefusedError("its data set has no length") from error
    return num_rows


def check_sampler(loader: Any) -> None:
    """Checks that a loader's sampler is torch's own, which draws as a pass begins.

    Raises:
        ChangeRefusedError: It is not, so another order of its calls could change what it draws.
    """
    samplers = (loader.batch_sampler, loader.sampler)
    if not all(type(sampler).__module__.startswith("torch.utils.data.") for sampler in samplers):
        raise ChangeRefusedError("its sampler is the script's own, and may draw random numbers during a pass")


def digest_of(torch: Any, loader: Any) -> str:
    """Returns the name under which a loader's data set is stored; empty if nothing is stored."""
    if not os.environ.get(KEPT_VARIABLE):
        return ""
    try:
        return str(result_of_child(torch, loader, lambda: key_of(torch, loader), MAX_KEY_SECONDS))
    except ChangeRefusedError:
        return ""


def _rows_in(torch: Any, about: Any, memory: Any) -> CollatedRows:
    """Returns a collated data set whose rows are in `memory`."""
    shapes, num_rows = about["shapes"], about["num_rows"]
    leaves = []
    for (name, shape), (begin, end) in zip(shapes, _ranges(torch, shapes, num_rows)):
        dtype, whole_shape = _dtype(torch, name), (num_rows, *shape)
        if end == begin:
            leaves.append(torch.empty(whole_shape, dtype=dtype))
            continue
        raw = torch.frombuffer(memory, dtype=torch.uint8, count=end - begin, offset=begin)
        leaves.append(raw.view(dtype).view(whole_shape))
    return CollatedRows(torch, about["tree"], leaves, num_rows, about["row_s"])


def check_rows(torch: Any, loader: Any) -> None:
    """Reads some rows both as a worker and as the training process, and checks that they are the same.

    Raises:
        ChangeRefusedError: They may differ.
    """
    num_rows = num_rows_of(torch, loader)
    if loader.worker_init_fn is not None:
        raise ChangeRefusedError("its workers call a `worker_init_fn`")
    rows = random.Random(0).sample(range(num_rows), min(num_rows, CHECK_WORKERS_ROWS))
    size = loader.batch_size or len(rows)
    fetch = fetcher(torch, loader).fetch

    def read() -> str:
        before, deadline_s = states(loader.dataset, loader.collate_fn), time.perf_counter() + CHECK_WORKERS_S
        for begin in range(0, len(rows), size):
            batch = rows[begin : begin + size]
            torch.utils.data._utils.worker._worker_info = None
            original = fetch(batch)
            if states(loader.dataset, loader.collate_fn) != before:
                return DRAWS
            be_worker(torch, loader, 1, 2)
            if not are_equal(torch, original, fetch(batch)):
                return "a batch depends on the process that reads it, or has parts that are not tensors"
            if time.perf_counter() > deadline_s:
                break
        return ""

    if num_rows and (why := fault_in_child(torch, loader, read, 10 * CHECK_WORKERS_S)):
        raise ChangeRefusedError(why)


def _filler(torch: Any, loader: Any, whole: CollatedRows, rows: range) -> Callable[[], str]:
    """Returns a function that collates rows in place, in a child, and returns why this is not allowed."""

    def fill() -> str:
        fetch = fetcher(torch, loader).fetch
        before = states(loader.dataset, loader.collate_fn)
        for begin in range(rows.start, rows.stop, BLOCK_ROWS):
            block = list(range(begin, min(begin + BLOCK_ROWS, rows.stop)))
            tensors: list[Any] = []
            if split_batch(torch, fetch(block), tensors, len(block)) != whole.tree:
                return "its batches differ in structure"
            for leaf, tensor in zip(whole.leaves, tensors):
                if tensor.dtype != leaf.dtype or tensor.shape[1:] != leaf.shape[1:]:
                    return "its rows differ in shape or type"
                leaf[begin : begin + len(block)] = tensor
        if states(loader.dataset, loader.collate_fn) != before:
            return DRAWS
        # The rows are read again as another worker.
        be_worker(torch, loader, 1)
        again = random.Random(0).sample(rows, min(len(rows), AGAIN_ROWS))
        return _find_difference(torch, whole, again, fetch, loader.batch_size or FIRST_ROWS)

    return fill


def _find_difference(
    torch: Any, whole: CollatedRows, rows: Sequence[int], fetch: Any, batch_size: int
) -> str:
    """Returns how batches of some rows differ from gathered ones; empty if they are equal in every bit."""
    for begin in range(0, len(rows), batch_size):
        batch = list(rows[begin : begin + batch_size])
        if not are_equal(torch, fetch(batch), whole.gather(batch)):
            return "a batch differs when it is read again, or is not simply its rows stacked"
    return ""


# -- memory ------------------------------------------------------------------------------------------


def _dtype(torch: Any, name: str) -> Any:
    return getattr(torch, name[len("torch.") :])


def _ranges(torch: Any, shapes: Sequence[Any], num_rows: int) -> Iterator[tuple[int, int]]:
    """Yields the begin and the end of each tensor's bytes in the memory of all tensors."""
    end = 0
    for name, shape in shapes:
        begin = -(-end // ALIGNMENT) * ALIGNMENT
        size = num_rows * int(torch.empty((), dtype=_dtype(torch, name)).element_size())
        for dimension in shape:
            size *= dimension
        end = begin + size
        yield begin, end


def available_bytes() -> int:
    """Returns the bytes that this process may still allocate, on the machine and in its control group."""
    num_bytes = sys.maxsize
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            num_bytes = next(1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            limit = int(file.read())
        with open("/sys/fs/cgroup/memory.current", encoding="ascii") as file:
            num_bytes = min(num_bytes, limit - int(file.read()))
    except (OSError, StopIteration, ValueError):
        pass
    return max(0, num_bytes)
