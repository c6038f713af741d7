"""Loaders: the same samples in the same order, by rows, by batches in workers, or on the device."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from sweeper.core.config import LoaderConfig
from sweeper.core.measurement import FailureKind
from sweeper.core.progress import TrialFailedError
from sweeper.trainer.pipeline import Batch, Samples


def epoch_order(seed: int, epoch: int, length: int) -> Tensor:
    """Returns the order (int64, shape [length]) in which `epoch` visits the samples.

    Drawn on the host, so that every loader kind and device sees the same one.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(length, generator=generator)


class _Order(Sampler[Any]):
    """An epoch's order as a sampler: single indices, or whole batches of them."""

    def __init__(self, length: int, batch_size: int, seed: int, *, batched: bool, drop_last: bool) -> None:
        self.length, self.batch_size, self.seed = length, batch_size, seed
        self.batched, self.drop_last = batched, drop_last
        self.epoch = 0

    def __iter__(self) -> Iterator[Any]:
        # A generator, so that the epoch is taken with the first index: DataLoader calls iter() twice
        # before its first batch where it has workers.
        order = epoch_order(self.seed, self.epoch, self.length)
        self.epoch += 1
        if not self.batched:
            yield from order.tolist()
            return
        batches = order.split(self.batch_size)
        ragged = self.drop_last and self.length % self.batch_size
        yield from batches[:-1] if ragged else batches

    def __len__(self) -> int:
        return self.length


class _Rows(Dataset[Mapping[str, Any]]):
    """One Python item per sample, collated by torch: what most hand-written datasets do."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples
        self.row = samples.row or self._row

    def _row(self, i: int) -> Mapping[str, Any]:
        return {name: tensor[i] for name, tensor in self.samples.tensors.items()}

    def __getitem__(self, i: int) -> Mapping[str, Any]:
        return self.row(i)

    def __len__(self) -> int:
        return self.samples.length


class _Batches(Dataset[Batch]):
    """Whole batches by index: one gather, no collation."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __getitem__(self, index: Any) -> Batch:
        return self.samples.gather(self.samples.tensors, index)

    def __len__(self) -> int:
        return self.samples.length


class Loader:
    """An endless stream of training batches, epoch after epoch.

    `next()` waits for a batch where it is made; `to_device` is the copy. The two are apart so that
    the step breakdown can tell waiting from copying.

    Attributes:
        drain_steps: Batches in flight when every queue is full; windows cover whole multiples.
    """

    def __init__(
        self, samples: Samples, config: LoaderConfig, batch_size: int, seed: int, device: torch.device
    ) -> None:
        if config.drop_last and samples.length < batch_size:
            raise TrialFailedError(
                FailureKind.DATA_TOO_SMALL,
                f"a batch of {batch_size} needs as many training samples, but there are {samples.length}",
            )
        self.device = device
        self.pinned = config.pin_memory and device.type == "cuda"
        self.drain_steps = 1
        self._loader: DataLoader[Any] | None = None
        self._on_device = config.kind == "resident"
        if config.kind == "resident":
            self._batches = self._gathered(samples, batch_size, seed, drop_last=config.drop_last)
            return
        rows = config.kind == "rows"
        order = _Order(samples.length, batch_size, seed, batched=not rows, drop_last=config.drop_last)
        in_workers = config.num_workers > 0
        self._loader = DataLoader(
            _Rows(samples) if rows else _Batches(samples),
            sampler=order,
            batch_size=batch_size if rows else None,
            drop_last=config.drop_last if rows else False,
            num_workers=config.num_workers,
            pin_memory=self.pinned,
            prefetch_factor=config.prefetch_factor if in_workers else None,
            persistent_workers=config.persistent_workers and in_workers,
        )
        self.drain_steps = max(1, config.num_workers * config.prefetch_factor)
        self._batches = self._epochs(self._loader)

    @staticmethod
    def _epochs(loader: Iterable[Batch]) -> Iterator[Batch]:
        while True:
            yield from loader

    def _gathered(self, samples: Samples, batch_size: int, seed: int, *, drop_last: bool) -> Iterator[Batch]:
        tensors = {name: tensor.to(self.device) for name, tensor in samples.tensors.items()}
        epoch = 0
        while True:
            order = epoch_order(seed, epoch, samples.length).to(self.device)
            epoch += 1
            for index in order.split(batch_size):
                if drop_last and len(index) < batch_size:
                    break
                yield samples.gather(tensors, index)

    def start(self) -> None:
        """Makes the first batch: starts the workers, or brings the tensors to the device."""
        self._batches = itertools.chain([next(self._batches)], self._batches)

    def next(self) -> Batch:
        """Returns the next batch, on the device for `resident`, else on the host."""
        return next(self._batches)

    def to_device(self, batch: Batch) -> Batch:
        """Returns `batch` on the device; a pinned one is copied asynchronously."""
        if self._on_device or self.device.type == "cpu":
            return batch
        return {name: tensor.to(self.device, non_blocking=self.pinned) for name, tensor in batch.items()}

    def close(self) -> None:
        """Ends the workers."""
        self._batches = iter(())
        iterator = getattr(self._loader, "_iterator", None)
        if iterator is not None:
            iterator._shutdown_workers()
        self._loader = None


def fixed_batches(
    samples: Samples, batch_size: int, num_samples: int, seed: int, device: torch.device
) -> Iterator[Batch]:
    """Yields exactly `num_samples` training samples in the seed's order, whatever the batch size.

    The order runs over the ends of epochs without dropping anything, so that the n-th sample is the
    same one for every batch size; the last batch may be smaller.
    """
    tensors = {name: tensor.to(device) for name, tensor in samples.tensors.items()}
    epochs = -(-num_samples // samples.length)
    order = torch.cat([epoch_order(seed, epoch, samples.length) for epoch in range(epochs)])
    for index in order[:num_samples].to(device).split(batch_size):
        yield samples.gather(tensors, index)
