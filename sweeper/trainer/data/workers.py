"""The `rows` and `workers` loaders: torch's DataLoader over single samples or whole batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from sweeper.core.config import LoaderConfig
from sweeper.core.loaders import traits
from sweeper.core.measurement import FailureKind
from sweeper.core.progress import TrialFailedError
from sweeper.trainer.data.order import Order, epoch_seed
from sweeper.trainer.data.protocol import LoadedBatch
from sweeper.trainer.pipeline import Batch, Samples


class _Batches(Sampler[Any]):
    """The batches of an epoch, as `(samples, length)`."""

    def __init__(self, order: Order) -> None:
        self.order, self.epoch = order, 0

    def __iter__(self) -> Iterator[Any]:
        # A generator, so that the epoch starts with the first index: with workers, DataLoader calls
        # iter() twice before its first batch.
        epoch = self.order.epoch(self.epoch)
        self.epoch += 1
        yield from epoch.batches()


class _RowsOf(_Batches):
    """The batches of an epoch, as lists of single samples with their length."""

    def __iter__(self) -> Iterator[Any]:
        for index, length in super().__iter__():
            yield [(i, length) for i in index.tolist()]


class _Rows(Dataset[Mapping[str, Any]]):
    """One Python item per sample, collated by torch, as in most hand-written datasets."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __getitem__(self, picked: tuple[int, int]) -> Mapping[str, Any]:
        return self.samples.item(*picked)


class _WholeBatches(Dataset[Batch]):
    """Whole batches by index: one gather, no collation."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __getitem__(self, picked: Any) -> Batch:
        return self.samples.read(self.samples.tensors, *picked)


def _worker_options(config: LoaderConfig) -> dict[str, Any]:
    """Returns the options of workers that differ from torch's defaults."""
    if not config.num_workers:
        return {}
    options: dict[str, Any] = {} if config.in_order else {"in_order": False}
    if config.start_method != "default":
        options["multiprocessing_context"] = config.start_method
    return options


class WorkerLoader:
    """`rows` and `workers`: torch's DataLoader, with or without worker processes."""

    period_steps = 1

    def __init__(self, samples: Samples, order: Order, config: LoaderConfig, device: torch.device) -> None:
        self.order, self.num_shapes = order, order.num_shapes
        self.device = device
        self.pinned = config.pin_memory and device.type == "cuda"
        # The loader has its own generator for what it draws at the start of an epoch, so that
        # training resumed within an epoch has the same random numbers as training without a break.
        self._random = torch.Generator()
        rows, in_workers = traits(config.kind).reads_rows, config.num_workers > 0
        self._loader: DataLoader[Any] | None = DataLoader(
            _Rows(samples) if rows else _WholeBatches(samples),
            batch_sampler=_RowsOf(order) if rows else None,
            sampler=None if rows else _Batches(order),
            batch_size=1 if rows else None,
            num_workers=config.num_workers,
            pin_memory=self.pinned,
            prefetch_factor=config.prefetch_factor if in_workers else None,
            persistent_workers=config.persistent_workers and in_workers,
            generator=self._random,
            **_worker_options(config),
        )
        self._start_method = config.start_method
        self.drain_steps = max(1, config.num_workers * config.prefetch_factor)
        self._epoch: Iterator[Batch] = iter(())
        self._stream = self._hand_over()

    def _hand_over(self) -> Iterator[LoadedBatch]:
        for epoch in itertools.count(self.order.first_epoch):
            self._random.manual_seed(epoch_seed(self.order.seed, epoch))
            # Kept so that `close` stops its workers even if an exception's traceback holds it, too.
            self._epoch = self._begin_epoch()
            for batch in self._epoch:
                yield LoadedBatch(batch, len(next(iter(batch.values()))), 0)

    def _begin_epoch(self) -> Iterator[Batch]:
        """Starts the workers and returns the batches of one epoch.

        Raises:
            TrialFailedError: The data set cannot be sent to workers that are started this way.
        """
        assert self._loader is not None
        try:
            # The data set is pickled here. Its own code runs later, for the first batch.
            return iter(self._loader)
        except Exception as error:
            if self._start_method not in ("forkserver", "spawn") or not _is_of_pickling(error):
                raise
            raise TrialFailedError(
                FailureKind.UNSUPPORTED,
                f"`loader.start_method: {self._start_method}` needs a data set that can be pickled, but "
                f"{error}",
            ) from error

    def start(self) -> None:
        """Starts the workers and waits for the first batch.

        Raises:
            TrialFailedError: The data set cannot be sent to workers that are started this way.
        """
        self._stream = itertools.chain([next(self._stream)], self._stream)

    def next(self) -> LoadedBatch:
        """Returns the next batch, on the host."""
        return next(self._stream)

    def to_device(self, batch: Batch) -> Batch:
        """Returns `batch` on the device; a pinned one is copied asynchronously."""
        if self.device.type == "cpu":
            return batch
        return {name: tensor.to(self.device, non_blocking=self.pinned) for name, tensor in batch.items()}

    def materialise(self, batch: Batch, length: int) -> Batch:
        """Returns `batch`."""
        return batch

    def close(self) -> None:
        """Stops the workers."""
        self._stream = iter(())
        if (shut_down := getattr(self._epoch, "_shutdown_workers", None)) is not None:
            shut_down()
        self._epoch, self._loader = iter(()), None


def _is_of_pickling(error: Exception) -> bool:
    return isinstance(error, AttributeError | TypeError) or type(error).__name__ == "PicklingError"
