"""The `resident` loader: samples lie on the device, in the order drawn for them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from sweeper.core.config import LoaderConfig
from sweeper.trainer import device as devices
from sweeper.trainer.data.loader import Handed, chunk_size, chunks, parts
from sweeper.trainer.data.order import Epoch, Order
from sweeper.trainer.pipeline import Batch, Samples

INDEX = "index"
"""In place of a batch's tensors: the samples it is to be gathered from, on the device."""

# Several batches are gathered at once, up to a whole epoch: that overlaps the latency of memory (on a
# CPU 55 us a batch of 512 rows between two steps become 27), and on a GPU is one launch in place of many.
CHUNK_BYTES = 64 * 2**20
# With more than this share of the free memory, what is read now and then stays on the host.
DEVICE_SHARE = 0.4


class ResidentLoader:
    """`resident`: the tensors lie on the device; some batches are gathered at once."""

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
        self._stream = self._index() if index_only else self._gathered()

    def _epochs(self) -> Iterator[Epoch]:
        """Yields epochs with their index on the device; on a GPU the next is drawn while this one runs."""
        if self.device.type == "cpu":
            yield from map(self.order.epoch, itertools.count())
            return
        with ThreadPoolExecutor(1) as ahead:
            drawn = ahead.submit(self._pinned, 0)
            for number in itertools.count(1):
                epoch = drawn.result()
                drawn = ahead.submit(self._pinned, number)
                index = epoch.index.to(self.device, non_blocking=True)
                yield Epoch(index, epoch.sizes, epoch.lengths)

    def _pinned(self, number: int) -> Epoch:
        # From pageable memory the copy would wait for the stream.
        epoch = self.order.epoch(number)
        return Epoch(epoch.index.pin_memory(), epoch.sizes, epoch.lengths)

    def _index(self) -> Iterator[Handed]:
        for epoch in self._epochs():
            for index, length in epoch.batches():
                yield Handed({INDEX: index}, len(index), length)

    def _gathered(self) -> Iterator[Handed]:
        for epoch in self._epochs():
            for index, sizes, length in chunks(epoch, self.period_steps):
                yield from parts(self.read(index, length), sizes, length)

    def read(self, index: Tensor, length: int) -> Batch:
        """Returns the samples `index` (on the device)."""
        return self.samples.read(self._tensors, index, length)

    def start(self) -> None:
        """Brings the tensors to the device."""
        self._tensors = {name: tensor.to(self.device) for name, tensor in self.samples.tensors.items()}
        if not self.index_only:
            index = torch.zeros(1, dtype=torch.int64, device=self.device)
            most = -(-self.samples.length // self.order.batch_size)
            self.period_steps = chunk_size(self.read, self.order, index, CHUNK_BYTES, most)

    def next(self) -> Handed:
        """Returns the next batch or its index, on the device."""
        return next(self._stream)

    def to_device(self, batch: Batch) -> Batch:
        """Returns `batch`, which is there."""
        return batch

    def materialise(self, batch: Batch, length: int) -> Batch:
        """Returns the batch; gathers it where only its index was handed over."""
        return self.read(batch[INDEX], length) if self.index_only else batch

    def close(self) -> None:
        """Lets go of the tensors."""
        self._stream = iter(())
        self._tensors = {}


class Reader:
    """Reads batches by index onto the device; from tensors that lie there, where they fit."""

    def __init__(self, samples: Samples, device: torch.device, memory_fraction: float = 0.0) -> None:
        """Places the tensors.

        Args:
            memory_fraction: Share of the device's memory that this process may allocate; 0 is all of it.
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
        """Returns the samples `index` (int64, on the host), padded to `length` where they have lengths."""
        if self.resident:
            return self.samples.read(self._tensors, index.to(self.device), length)
        batch = self.samples.read(self._tensors, index, length)
        return {name: tensor.to(self.device) for name, tensor in batch.items()}
