"""The `stream` loader: gathers samples in host memory and copies them ahead of the step."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from sweeper.core.config import LoaderConfig
from sweeper.trainer.data.order import Order
from sweeper.trainer.data.protocol import LoadedBatch, chunk_size, chunks, parts
from sweeper.trainer.pipeline import Batch, Samples

CHUNK_BYTES = {"cpu": 4 * 2**20, "cuda": 16 * 2**20}
MAX_CHUNK = 8


class StreamLoader:
    """`stream`: a thread gathers samples in host memory and copies them ahead of the step.

    Two chunks of several batches are in flight: one being gathered and copied, one waiting. On a
    GPU the copy is from pinned memory, on a separate stream.
    """

    def __init__(self, samples: Samples, order: Order, config: LoaderConfig, device: torch.device) -> None:
        self.samples, self.order, self.device = samples, order, device
        self.num_shapes = order.num_shapes
        self.drain_steps = self.period_steps = 1
        self._queue: queue.Queue[Any] = queue.Queue(maxsize=1)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._fill, name="stream", daemon=True)
        self._stream = self._receive()

    def read(self, index: Tensor, length: int) -> Batch:
        """Returns the samples `index`, on the host."""
        return self.samples.read(self.samples.tensors, index, length)

    def _fill(self) -> None:
        try:
            copies = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
            for number in itertools.count():
                epoch = self.order.epoch(number)
                for index, sizes, length in chunks(epoch, self.period_steps):
                    batch, copied = self._copy(self.read(index, length), copies)
                    self._put((batch, sizes, length, copied))
                    if self._closed.is_set():
                        return
        except BaseException as error:
            self._put(error)

    def _put(self, chunk: Any) -> None:
        while not self._closed.is_set():
            try:
                self._queue.put(chunk, timeout=0.1)
                return
            except queue.Full:
                continue

    def _copy(self, batch: Batch, copies: Any) -> tuple[Batch, Any]:
        """Starts the copy to the device; returns it with an event for its end."""
        if copies is None:
            return batch, None
        with torch.cuda.stream(copies):
            there = {
                name: tensor.pin_memory().to(self.device, non_blocking=True) for name, tensor in batch.items()
            }
            return there, copies.record_event()

    def _receive(self) -> Iterator[LoadedBatch]:
        while True:
            chunk = self._queue.get()
            if isinstance(chunk, BaseException):
                raise chunk
            batch, sizes, length, copied = chunk
            if copied is not None:
                stream = torch.cuda.current_stream(self.device)
                stream.wait_event(copied)
                for tensor in batch.values():
                    # Allocated on the copy stream, which must not reuse it while this stream reads.
                    tensor.record_stream(stream)
            yield from parts(batch, sizes, length)

    def start(self) -> None:
        """Starts the thread and waits for the first batch."""
        limit = CHUNK_BYTES[self.device.type]
        one = torch.zeros(1, dtype=torch.int64)
        self.period_steps = chunk_size(self.read, self.order, one, limit, MAX_CHUNK)
        self.drain_steps = 2 * self.period_steps
        self._thread.start()
        self._stream = itertools.chain([next(self._stream)], self._stream)

    def next(self) -> LoadedBatch:
        """Returns the next batch, on the device."""
        return next(self._stream)

    def to_device(self, batch: Batch) -> Batch:
        """Returns `batch`, which is already there."""
        return batch

    def materialise(self, batch: Batch, length: int) -> Batch:
        """Returns `batch`."""
        return batch

    def close(self) -> None:
        """Stops the thread."""
        self._closed.set()
        self._stream = iter(())
        if self._thread.is_alive():
            self._thread.join()
