"""Collates a whole data set once, if that is found to give the same batches.

All rows are read in child processes, as a loader's workers would read them, so that nothing changes in the
script's own: neither its generators nor its data set. There it is found out, by comparing and not by types,
whether a gather from the collated rows is what the script's own `collate_fn` makes of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .generators import states
from .kept import VARIABLE as KEPT
from .kept import Kept, key_of

BLOCK_ROWS = 1024
FIRST_ROWS = 256
"""From which memory and time of all rows are estimated."""

MAX_SECONDS = 60.0
"""A data set that takes longer to collate is not."""

MAX_MEMORY_SHARE = 0.25
"""Of the memory that is available."""

AGAIN_ROWS = 20_000
"""Rows read a second time: a change with a probability of 0.001 is missed once in 10^8 cases."""

CHECK_ROWS, CHECK_SECONDS = 256, 0.25
"""Rows, and their time, that are read again at each pass: a data set may change with the epoch."""

CHECK_WORKERS_ROWS, CHECK_WORKERS_S = 4096, 2.0
"""Rows, and their time, that are read by two kinds of reader."""

MAX_CHILDREN = 8

MAX_KEY_SECONDS = 5.0
"""For a digest of the data set."""

ALIGNMENT = 64
"""Bytes; tensors begin at multiples of it."""


class RefusedError(Exception):
    """The batches of a loader cannot be gathered; its text says why."""


class Collated:
    """All rows of a data set, collated.

    Attributes:
        num_bytes: Of its tensors.
    """

    def __init__(self, torch: Any, tree: Any, leaves: Sequence[Any], num_rows: int, row_s: float) -> None:
        self._torch, self._tree, self._leaves = torch, tree, leaves
        self._num_rows, self._row_s = num_rows, row_s
        self._passes = 0
        self.num_bytes = sum(each.numel() * each.element_size() for each in leaves)

    def gather(self, indices: Any) -> Any:
        """Returns the batch of these rows; None if they are not numbers of rows."""
        if type(indices) is not list or not indices:
            return None
        try:
            index = self._torch.tensor(indices)
        except (TypeError, ValueError, RuntimeError):
            return None
        if index.dim() != 1 or index.dtype != self._torch.int64 or not self._has(indices):
            return None
        return _filled(self._tree, iter([each.index_select(0, index) for each in self._leaves]))

    def _has(self, indices: Sequence[int]) -> bool:
        return min(indices) >= 0 and max(indices) < self._num_rows

    def stale(self, loader: Any) -> str:
        """Returns why the data set is not what it was any more; empty if it is, as far as some rows show."""
        self._passes += 1
        count = min(self._num_rows, CHECK_ROWS, max(2, int(CHECK_SECONDS / max(self._row_s, 1e-9))))
        rows = random.Random(self._passes).sample(range(self._num_rows), count)

        def compare() -> str:
            fetch = fetcher(self._torch, loader).fetch
            return _compared(self._torch, self, rows, fetch, loader.batch_size or len(rows))

        return _in_child(self._torch, loader, compare, 20 * CHECK_SECONDS)


def fetcher(torch: Any, loader: Any) -> Any:
    """Returns torch's own fetcher of a loader's batches."""
    return torch.utils.data.dataloader._DatasetKind.create_fetcher(
        loader._dataset_kind, loader.dataset, loader._auto_collation, loader.collate_fn, loader.drop_last
    )


def collated(torch: Any, loader: Any) -> Collated:
    """Returns the collated data set of a loader.

    Raises:
        RefusedError: It cannot be collated once, or not in time, or does not fit into memory.
    """
    if loader._dataset_kind != torch.utils.data.dataloader._DatasetKind.Map or not loader._auto_collation:
        raise RefusedError("its data come as a stream, or not in batches")
    try:
        num_rows = len(loader.dataset)
    except TypeError as error:
        raise RefusedError("its data set has no length") from error
    if not num_rows:
        raise RefusedError("its data set is empty")
    first = min(num_rows, FIRST_ROWS)
    fetch = fetcher(torch, loader).fetch
    kept = Kept(_key(torch, loader))
    if (found := kept.read()) is not None:
        whole = _whole(torch, *found)
        # An earlier process has compared them; the data themselves may have changed since.
        if not whole.stale(loader):
            return whole

    def look() -> Any:
        began_s = time.perf_counter()
        leaves: list[Any] = []
        tree = _parted(torch, fetch(list(range(first))), leaves, first)
        shapes = [(str(each.dtype), each.shape[1:]) for each in leaves]
        return tree, shapes, (time.perf_counter() - began_s) / first

    tree, shapes, row_s = _child(torch, loader, look, MAX_SECONDS)
    children = min(len(os.sched_getaffinity(0)), MAX_CHILDREN) if loader.num_workers else 1
    # Read once, and some of it again.
    seconds = row_s * (num_rows + min(num_rows, AGAIN_ROWS)) / children
    if seconds > MAX_SECONDS:
        raise RefusedError(
            f"collating its {num_rows:,} rows would take {seconds:.0f} s, more than {MAX_SECONDS:.0f}"
        )
    size = max((end for _, end in _ranges(torch, shapes, num_rows)), default=0)
    room = MAX_MEMORY_SHARE * available_bytes()
    if size > room:
        raise RefusedError(
            f"its {num_rows:,} rows take {size / 2**30:.2f} GiB, more than"
            f" {room / 2**30:.2f} GiB, a quarter of the free memory"
        )
    about = {"tree": tree, "shapes": shapes, "num_rows": num_rows, "row_s": row_s}
    whole = _whole(torch, about, kept.room(size))
    ends = [num_rows * number // children for number in range(children + 1)]
    try:
        _together(
            torch,
            loader,
            [
                _filling(torch, loader, whole, range(begin, end))
                for begin, end in zip(ends, ends[1:])
                if end > begin
            ],
        )
    except RefusedError:
        kept.drop()
        raise
    kept.keep(about)
    return whole


def _key(torch: Any, loader: Any) -> str:
    """Returns what the collated rows are kept under; empty if they are not."""
    if not os.environ.get(KEPT):
        return ""
    try:
        return str(_child(torch, loader, lambda: key_of(torch, loader), MAX_KEY_SECONDS))
    except RefusedError:
        return ""


def _whole(torch: Any, about: Any, memory: Any) -> Collated:
    """Returns a collated data set whose rows are in some memory."""
    shapes, num_rows = about["shapes"], about["num_rows"]
    leaves = []
    for (name, shape), (begin, end) in zip(shapes, _ranges(torch, shapes, num_rows)):
        dtype, whole_shape = _dtype(torch, name), (num_rows, *shape)
        if end == begin:
            leaves.append(torch.empty(whole_shape, dtype=dtype))
            continue
        raw = torch.frombuffer(memory, dtype=torch.uint8, count=end - begin, offset=begin)
        leaves.append(raw.view(dtype).view(whole_shape))
    return Collated(torch, about["tree"], leaves, num_rows, about["row_s"])


def check_rows(torch: Any, loader: Any) -> None:
    """Reads some rows as a worker and as none, to see whether the training could not tell who did.

    Raises:
        RefusedError: It could.
    """
    if loader._dataset_kind != torch.utils.data.dataloader._DatasetKind.Map or not loader._auto_collation:
        raise RefusedError("its data come as a stream, or not in batches")
    if loader.worker_init_fn is not None:
        raise RefusedError("its workers are set up by a function of the script's")
    try:
        num_rows = len(loader.dataset)
    except TypeError as error:
        raise RefusedError("its data set has no length") from error
    rows = random.Random(0).sample(range(num_rows), min(num_rows, CHECK_WORKERS_ROWS))
    size = loader.batch_size or len(rows)
    fetch = fetcher(torch, loader).fetch

    def read() -> str:
        before, deadline_s = states(loader.dataset, loader.collate_fn), time.perf_counter() + CHECK_WORKERS_S
        for begin in range(0, len(rows), size):
            batch = rows[begin : begin + size]
            torch.utils.data._utils.worker._worker_info = None
            own = fetch(batch)
            if states(loader.dataset, loader.collate_fn) != before:
                return "reading a row draws from a random generator"
            _be_worker(torch, loader, 1, 2)
            if not _are_equal(torch, own, fetch(batch)):
                return "a batch differs by who reads it, or is not of tensors"
            if time.perf_counter() > deadline_s:
                break
        return ""

    if num_rows and (why := _in_child(torch, loader, read, 10 * CHECK_WORKERS_S)):
        raise RefusedError(why)


def _filling(torch: Any, loader: Any, whole: Collated, rows: range) -> Callable[[], str]:
    """Returns a function for a child: collates some rows in place, and returns why that must not be done."""

    def fill() -> str:
        fetch = fetcher(torch, loader).fetch
        before = states(loader.dataset, loader.collate_fn)
        for begin in range(rows.start, rows.stop, BLOCK_ROWS):
            block = list(range(begin, min(begin + BLOCK_ROWS, rows.stop)))
            found: list[Any] = []
            if _parted(torch, fetch(block), found, len(block)) != whole._tree:
                return "its batches differ in kind"
            for leaf, each in zip(whole._leaves, found):
                if each.dtype != leaf.dtype or each.shape[1:] != leaf.shape[1:]:
                    return "its rows differ in size"
                leaf[begin : begin + len(block)] = each
        if states(loader.dataset, loader.collate_fn) != before:
            return "reading a row draws from a random generator"
        # As another worker.
        _be_worker(torch, loader, 1)
        again = random.Random(0).sample(rows, min(len(rows), AGAIN_ROWS))
        return _compared(torch, whole, again, fetch, loader.batch_size or FIRST_ROWS)

    return fill


def _compared(torch: Any, whole: Collated, rows: Sequence[int], fetch: Any, batch_size: int) -> str:
    """Returns how batches of these rows differ from gathered ones; empty if in no bit."""
    for begin in range(0, len(rows), batch_size):
        batch = list(rows[begin : begin + batch_size])
        if not _are_equal(torch, fetch(batch), whole.gather(batch)):
            return "a batch is not the same when it is read again, or is more than its rows"
    return ""


# -- batches as trees of tensors ---------------------------------------------------------------------


def _parted(torch: Any, batch: Any, leaves: list[Any], num_rows: int) -> Any:
    """Returns the structure of a batch, which JSON can hold, and adds its tensors to `leaves`.

    Raises:
        RefusedError: It has more than tensors with a row for each sample.
    """
    kind = type(batch)
    if kind is torch.Tensor:
        if batch.device.type != "cpu" or batch.layout != torch.strided or batch.requires_grad:
            raise RefusedError("its batches have tensors that are not plain")
        if batch.dim() == 0 or batch.shape[0] != num_rows:
            raise RefusedError("its batches have tensors without a row for each sample")
        leaves.append(batch)
        return None
    if kind is dict and all(type(key) in (str, int) for key in batch):
        return ["dict", [[key, _parted(torch, each, leaves, num_rows)] for key, each in batch.items()]]
    is_named = issubclass(kind, tuple) and hasattr(kind, "_fields")
    name = f"{kind.__module__}:{kind.__qualname__}" if is_named else kind.__name__
    if kind in (list, tuple) or (is_named and _kind(name) is kind):
        return [name, [_parted(torch, each, leaves, num_rows) for each in batch]]
    raise RefusedError(f"its batches have parts of type {kind.__name__}")


def _filled(tree: Any, leaves: Iterator[Any]) -> Any:
    if tree is None:
        return next(leaves)
    name, parts = tree
    if name == "dict":
        return {key: _filled(each, leaves) for key, each in parts}
    found = [_filled(each, leaves) for each in parts]
    return found if name == "list" else tuple(found) if name == "tuple" else _kind(name)(*found)


def _kind(name: str) -> Any:
    """Returns the class of a named tuple; None if its module has none of that name."""
    module, _, kind = name.partition(":")
    return getattr(sys.modules.get(module), kind, None)


def _are_equal(torch: Any, one: Any, other: Any) -> bool:
    """Whether two batches are equal in every bit, and in the layout of their tensors."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(_are_equal(torch, one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(_are_equal(torch, *pair) for pair in zip(one, other))
    if not isinstance(one, torch.Tensor):
        return False
    if one.dtype != other.dtype or one.shape != other.shape or one.stride() != other.stride():
        return False
    return bool(torch.equal(_bits(torch, one), _bits(torch, other)))


def _bits(torch: Any, tensor: Any) -> Any:
    # A NaN is equal to itself here, and 0.0 is not -0.0.
    return tensor.contiguous().view(-1).view(torch.uint8)


# -- memory ------------------------------------------------------------------------------------------


def _dtype(torch: Any, name: str) -> Any:
    return getattr(torch, name[len("torch.") :])


def _ranges(torch: Any, shapes: Sequence[Any], num_rows: int) -> Iterator[tuple[int, int]]:
    """Yields where the bytes of each tensor begin and end in the memory of them all."""
    end = 0
    for name, shape in shapes:
        begin = -(-end // ALIGNMENT) * ALIGNMENT
        size = num_rows * int(torch.empty((), dtype=_dtype(torch, name)).element_size())
        for each in shape:
            size *= each
        end = begin + size
        yield begin, end


def available_bytes() -> int:
    """Returns the memory that this process may still take: the machine's, or its control group's."""
    found = sys.maxsize
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            found = next(1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            limit = int(file.read())
        with open("/sys/fs/cgroup/memory.current", encoding="ascii") as file:
            found = min(found, limit - int(file.read()))
    except (OSError, StopIteration, ValueError):
        pass
    return max(0, found)


# -- child processes ---------------------------------------------------------------------------------


def _be_worker(torch: Any, loader: Any, number: int, count: int | None = None) -> None:
    """Has a child look to the data set as one of the loader's workers would, or as one of `count`."""
    if count := loader.num_workers if count is None else count:
        worker = torch.utils.data._utils.worker
        worker._worker_info = worker.WorkerInfo(
            id=number % count, num_workers=count, seed=number, dataset=loader.dataset
        )


def _start(torch: Any, loader: Any, work: Callable[[], Any]) -> tuple[int, int]:
    """Runs `work` in a child; returns its id and a descriptor that gives what it returned."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    status = 1
    try:
        os.close(reading)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # The threads of the parent are not here.
        torch.set_num_threads(1)
        _be_worker(torch, loader, 0)
        if loader.num_workers and loader.worker_init_fn is not None:
            loader.worker_init_fn(0)
        try:
            found = True, work()
        except RefusedError as refusal:
            found = False, str(refusal)
        except Exception as error:
            found = False, f"reading a row raised {type(error).__name__}: {error}"[:300]
        with os.fdopen(writing, "w", encoding="utf-8") as file:
            json.dump(found, file)
        status = 0
    finally:
        # Neither the script's own exit handlers nor its `finally`.
        os._exit(status)


def _ended(child: int, reading: int, deadline_s: float) -> Any:
    """Returns what a child returned.

    Raises:
        RefusedError: It refused, was late, or died.
    """
    import select

    pieces = []
    try:
        while True:
            left = deadline_s - time.perf_counter()
            if left <= 0 or not select.select([reading], [], [], left)[0]:
                raise RefusedError("its rows are not read in time")
            piece = os.read(reading, 1 << 20)
            if not piece:
                break
            pieces.append(piece)
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    try:
        is_done, found = json.loads(b"".join(pieces))
    except ValueError as error:
        raise RefusedError("the process that read its rows died") from error
    if not is_done:
        raise RefusedError(found)
    return found


def _child(torch: Any, loader: Any, work: Callable[[], Any], seconds: float) -> Any:
    return _ended(*_start(torch, loader, work), time.perf_counter() + seconds)


def _in_child(torch: Any, loader: Any, work: Callable[[], str], seconds: float) -> str:
    """Returns what a child finds fault with; empty if nothing."""
    try:
        return str(_child(torch, loader, work, seconds))
    except RefusedError as refusal:
        return str(refusal)


def _together(torch: Any, loader: Any, works: Sequence[Callable[[], str]]) -> None:
    """Runs children side by side.

    Raises:
        RefusedError: One of them found fault.
    """
    deadline_s = time.perf_counter() + 3 * MAX_SECONDS
    children = [_start(torch, loader, work) for work in works]
    faults = []
    for child in children:
        try:
            faults.append(_ended(*child, deadline_s))
        except RefusedError as refusal:
            faults.append(str(refusal))
    for fault in filter(None, faults):
        raise RefusedError(fault)
