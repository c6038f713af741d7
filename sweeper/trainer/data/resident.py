"""The `resident` loader: samples are on the device, and batches are gathered there."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from sweeper.core.config import LoaderConfig
from sweeper.system.cpu import usable_cpus
from sweeper.trainer import device as devices
from sweeper.trainer.data.order import Epoch, Order
from sweeper.trainer.data.protocol import LoadedBatch, chunk_size, chunks, parts, prefetch
from sweeper.trainer.pipeline import Batch, Samples

INDEX = "index"
"""Name of the tensor that stands for a whole batch: the indices of its samples, on the device."""

# Several batches, up to a whole epoch, are gathered together: that overlaps memory latency (on a
# CPU, a batch of 512 rows between two steps takes 27 us, down from 55), and on a GPU saves launches.
CHUNK_BYTES = 64 * 2**20
# Data for occasional reads stays on the host if it takes more than this share of the free memory.
DEVICE_SHARE = 0.4


class ResidentLoader:
    """`resident`: the tensors are on the device; several batches are gathered together."""

    drain_steps = 1

    def __init__(
        self,
        samples: Samples,
        order: Order,
        config: LoaderConfig,
        device: torch.device,
        *,
        index_only: bool = False,
    ) -> None:
        self.samples, self.order, self.device = samples, order, device
        self.num_shapes = order.num_shapes
        self.index_only = index_only
        self.period_steps = 1
        self._tensors: Mapping[str, Tensor] = {}
        self._stream = self._index() if index_only else self._gather()

    def _epochs(self) -> Iterator[Epoch]:
        """Yields epochs with their index on the device; for a GPU, draws the next one ahead."""
        if self.device.type == "cpu":
            yield from map(self.order.epoch, itertools.count())
            return
        for epoch in prefetch(map(self._pin_epoch, itertools.count())):
            yield Epoch(epoch.index.to(self.device, non_blocking=True), epoch.sizes, epoch.lengths)

    def _pin_epoch(self, number: int) -> Epoch:
        # A copy from pageable memory would wait for the stream.
        epoch = self.order.epoch(number)
        return Epoch(epoch.index.pin_memory(), epoch.sizes, epoch.lengths)

    def _index(self) -> Iterator[LoadedBatch]:
        for epoch in self._epochs():
            for index, length in epoch.batches():
                yield LoadedBatch({INDEX: index}, len(index), length)

    def _gather(self) -> Iterator[LoadedBatch]:
        together = self._chunks()
        # A spare core gathers the next batches during the steps.
        for batch, sizes, length in prefetch(together) if self._has_spare_core() else together:
            yield from parts(batch, sizes, length)

    def _has_spare_core(self) -> bool:
        is_on_one = self.device.type == "cpu" and torch.get_num_threads() == 1
        return is_on_one and self.order.num_ranks < usable_cpus()

    def _chunks(self) -> Iterator[tuple[Batch, list[int], int]]:
        for epoch in self._epochs():
            for index, sizes, length in chunks(epoch, self.period_steps):
                yield self.read(index, length), sizes, length

    def read(self, index: Tensor, length: int) -> Batch:
        """Returns the samples `index` (on the device)."""
        return self.samples.read(self._tensors, index, length)

    def start(self) -> None:
        """Copies the tensors to the device."""
        self._tensors = {name: tensor.to(self.device) for name, tensor in self.samples.tensors.items()}
        if not self.index_only:
            index = torch.zeros(1, dtype=torch.int64, device=self.device)
            max_batches = -(-self.samples.length // self.order.batch_size)
            self.period_steps = chunk_size(self.read, self.order, index, CHUNK_BYTES, max_batches)

    def next(self) -> LoadedBatch:
        """Returns the next batch or its index, on the device."""
        return next(self._stream)

    def to_device(self, batch: Batch) -> Batch:
        """Returns `batch`, which is already there."""
        return batch

    def materialise(self, batch: Batch, length: int) -> Batch:
        """Returns the batch, gathering it if only its index is given."""
        return self.read(batch[INDEX], length) if self.index_only else batch

    def close(self) -> None:
        """Releases the tensors."""
        self._stream = iter(())
        self._tensors = {}


class BatchReader:
    """Reads batches by index onto the device, where the tensors are kept if they fit."""

    def __init__(self, samples: Samples, device: torch.device, memory_fraction: float = 0.0) -> None:
        """Places the tensors.

        Args:
            memory_fraction: Share of the device's memory that this process may allocate; 0 for all.
        """
        self.samples, self.device = samples, device
        self.resident = not samples.on_host
        if device.type == "cuda" and self.resident:
            torch.cuda.empty_cache()
            self.resident = samples.nbytes <= DEVICE_SHARE * devices.free_bytes(device, memory_fraction)
        self._tensors = (
            {name: tensor.to(device) for name, tensor in samples.tensors.items()}
            if self.resident
            else samples.tensors
        )

    def __call__(self, index: Tensor, length: int) -> Batch:
        """Returns the samples `index` (int64, on the host), padded to `length` unless it is 0."""
        if self.resident:
            return self.samples.read(self._tensors, index.to(self.device), length)
        batch = self.samples.read(self._tensors, index, length)
        return {name: tensor.to(self.device) for name, tensor in batch.items()}
