"""Defines the interface of pipelines: prepared arrays, samples and a model.

A pipeline is a module with two functions:

    def prepare(data: Mapping[str, Any]) -> Prepared           # once per machine, for all trials
    def build(config: TrialConfig, prepared: Prepared) -> Pipeline                   # per trial
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from sweeper.core import modules
from sweeper.core.job import Job
from sweeper.errors import UserError

# Here rather than in `load_module`: a spawned loader worker imports this before its samples.
modules.make_importable()

Batch = dict[str, Tensor]
"""Named tensors, each with the batch as its first dimension."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Named arrays plus plain metadata, kept as memory-mapped files and shared by all trials.

    Attributes:
        arrays: Arrays by name, of any dtype that a .npy file can hold.
        meta: JSON values (vocabulary sizes, scalers, counts).
        synthetic: Whether the data is synthetic, which reports mention with every result.
        notes: Lines for the user: what was skipped, masked or synthesised.
    """

    arrays: Mapping[str, np.ndarray]
    meta: Mapping[str, Any] = field(default_factory=dict)
    synthetic: bool = False
    notes: Sequence[str] = ()


def take(tensors: Mapping[str, Tensor], index: Tensor) -> Batch:
    """Returns the rows `index` (int64, shape [batch]) of every tensor."""
    return {name: _rows(tensor, index) for name, tensor in tensors.items()}


def _rows(tensor: Tensor, index: Tensor) -> Tensor:
    # On one thread, numpy takes two thirds of the time for short rows: index_select spends 30 ns on
    # each.
    if tensor.device.type == "cpu" and torch.get_num_threads() == 1 and tensor.dtype != torch.bfloat16:
        return torch.from_numpy(tensor.numpy().take(index.numpy(), axis=0))
    return tensor.index_select(0, index)


def take_windows(series: Tensor, start: Tensor, length: int) -> Tensor:
    """Returns the windows of `series` [time, features] that start at `start` [batch].

    Windows overlap in memory: viewed as one row of length * features numbers per starting time, a
    batch is a single indexed read, and nothing else is materialised. `series` must be contiguous.

    Returns:
        A tensor [batch, length, features].
    """
    time, width = series.shape
    windows = series.as_strided((time - length + 1, length * width), (width, 1))
    return windows.index_select(0, start).view(-1, length, width)


@runtime_checkable
class Source(Protocol):
    """Samples that are read on demand, from data larger than memory.

    `prepare` may return one instead of `Prepared`; it is then called in every trial, and opens the
    data.
    """

    def __len__(self) -> int:
        """Returns the number of samples."""

    def read(self, index: Tensor) -> Batch:
        """Returns the samples `index` (int64, shape [batch]) on the host.

        Called from loader workers or from a thread; with `loader.kind: stream`, validation may read in
        the main thread at the same time. Workers that are started by `spawn` or `forkserver` get the
        source pickled.
        """


def _read(source: Source, subset: Tensor | None, tensors: Mapping[str, Tensor], index: Tensor) -> Batch:
    return source.read(index if subset is None else subset[index])


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """A data set that can be read in batches.

    Attributes:
        tensors: The tensors that `gather` reads; the `resident` loader moves them to the device.
        length: Number of samples.
        gather: `(tensors, index) -> batch`, with tensor operations only, so that it runs on the
            device. The default takes rows; a data set of windows gathers from a strided view. Each
            sample must depend only on its own index: the loader decides how many to gather
            together.
        row: `(i) -> one sample` for the `rows` loader, as from a hand-written `__getitem__`.
            The default indexes every tensor at `i`.
        lengths: Length of each sample (int64), if they differ. `gather` and `row` are then called
            with the `length=` to pad to: one of a few values, never less than the sample's own.
        on_host: Whether `gather` reads from elsewhere than `tensors` and returns host tensors.
    """

    tensors: Mapping[str, Tensor]
    length: int
    gather: Callable[..., Batch] = take
    row: Callable[..., Mapping[str, Any]] | None = None
    lengths: Tensor | None = None
    on_host: bool = False

    @classmethod
    def of(cls, source: Source, subset: Tensor | None = None) -> Samples:
        """Returns the samples of `source`, or only those at `subset` (int64)."""
        return cls(
            tensors={},
            length=len(source if subset is None else subset),
            # No closure: workers that are started by `spawn` get it pickled.
            gather=partial(_read, source, subset),
            on_host=True,
        )

    @property
    def nbytes(self) -> int:
        """Bytes in the tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def read(self, tensors: Mapping[str, Tensor], index: Tensor, length: int) -> Batch:
        """Returns the samples `index` from `tensors`, padded to `length` unless it is 0."""
        return self.gather(tensors, index, length=length) if length else self.gather(tensors, index)

    def item(self, i: int, length: int) -> Mapping[str, Any]:
        """Returns the sample `i`, from the pipeline's `row` or by plain indexing."""
        if self.row is not None:
            return self.row(i, length=length) if length else self.row(i)
        if length or self.on_host:
            return {
                name: value[0] for name, value in self.read(self.tensors, torch.tensor([i]), length).items()
            }
        return {name: tensor[i] for name, tensor in self.tensors.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One trial's model and data, as plain PyTorch.

    Attributes:
        model: Called inside `loss`; torch.compile is applied to it.
        loss: `(model, batch) -> scalar`, the mean over the batch's samples.
        constant_loss: Validation loss of the best constant predictor, if known.
        best_loss: Best reachable validation loss, for synthetic data.
        evaluate: `(model, batches) -> numbers by name`: further metrics on the validation samples
            (accuracy, error rate). It gets each sample once, in the trial's precision and without
            gradients, after the quality pass.
    """

    model: nn.Module
    train: Samples
    val: Samples
    loss: Callable[[nn.Module, Batch], Tensor]
    constant_loss: float | None = None
    best_loss: float | None = None
    evaluate: Callable[[nn.Module, Iterable[Batch]], Mapping[str, float]] | None = None


def load_module(job: Job) -> ModuleType:
    """Returns the user's pipeline module, imported.

    Raises:
        UserError: It does not exist, cannot be imported, or has no `prepare` or `build`.
    """
    modules.search_first(job.import_paths)
    source = modules.find(job.pipeline, job.import_paths)
    name = source.name if source else job.pipeline
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise UserError(
                f"`pipeline` must name a module that can be imported, but got {job.pipeline!r}, "
                f"which is not in {', '.join(job.import_paths)}."
            ) from None
        raise
    modules.check_defines(job.pipeline, dir(module))
    return module
