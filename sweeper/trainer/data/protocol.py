"""The protocol of loaders, and helpers that gather several batches together.

The loaders are listed in `sweeper.core.loaders`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import NamedTuple, Protocol, TypeVar

from torch import Tensor

from sweeper.trainer.data.order import Epoch, Order
from sweeper.trainer.pipeline import Batch

T = TypeVar("T")


class LoadedBatch(NamedTuple):
    """A loader's result: a batch or its index, its number of samples, its static length or 0."""

    batch: Batch
    size: int
    length: int


class Loader(Protocol):
    """An endless stream of training batches, epoch after epoch.

    `next` waits for a batch and `to_device` copies it; they are separate so that the step breakdown
    can tell waiting from copying. `materialise` is part of the step, and of its graph if one is
    captured.

    Attributes:
        order: Which samples make up which batch.
        drain_steps: Batches in flight when all queues are full; windows cover whole multiples.
        period_steps: Steps after which its work repeats.
        num_shapes: Static shapes that whole batches come in.
    """

    order: Order
    drain_steps: int
    period_steps: int
    num_shapes: int

    def start(self) -> None:
        """Makes the first batch: starts workers and threads, or copies tensors to the device."""

    def next(self) -> LoadedBatch:
        """Returns the next batch."""

    def to_device(self, batch: Batch) -> Batch:
        """Returns `batch` on the device; a pinned one is copied asynchronously."""

    def materialise(self, batch: Batch, length: int) -> Batch:
        """Returns the tensors of `batch`, which may only be an index."""

    def close(self) -> None:
        """Stops workers and threads, and releases the data."""


def prefetch(items: Iterator[T]) -> Iterator[T]:
    """Yields the items of an endless iterator; a thread makes the next one.

    One item is in flight: a loader's `drain_steps` is the number of batches in an item.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        coming = pool.submit(next, items)
        while True:
            item = coming.result()
            coming = pool.submit(next, items)
            yield item


def chunks(epoch: Epoch, max_batches: int) -> Iterator[tuple[Tensor, list[int], int]]:
    """Yields `(samples, sizes, length)` for up to `max_batches` batches that can be gathered together."""
    batch = at = 0
    for length, run in groupby(epoch.lengths):
        left = len(list(run))
        while left:
            sizes = epoch.sizes[batch : batch + min(left, max_batches)]
            yield epoch.index[at : at + sum(sizes)], sizes, length
            batch, at, left = batch + len(sizes), at + sum(sizes), left - len(sizes)


def parts(batch: Batch, sizes: list[int], length: int) -> Iterator[LoadedBatch]:
    """Yields the batches that were gathered together, as views."""
    if len(sizes) == 1:
        yield LoadedBatch(batch, sizes[0], length)
        return
    names = list(batch)
    for size, *tensors in zip(sizes, *(batch[name].split(sizes) for name in names), strict=True):
        yield LoadedBatch(dict(zip(names, tensors, strict=True)), size, length)


def chunk_size(
    read: Callable[[Tensor, int], Batch], order: Order, index: Tensor, limit_bytes: int, max_batches: int
) -> int:
    """Returns how many of the longest batches fit into `limit_bytes`, 1 to `max_batches`."""
    one = read(index, order.edges[-1] if order.edges else 0)
    size = order.batch_size * sum(tensor.nbytes for tensor in one.values())
    return max(1, min(max_batches, limit_bytes // max(size, 1)))
