"""What a pipeline gives to the trainer: prepared arrays, samples read in batches, and a model.

A pipeline is a module with two functions:

    def prepare(data: Mapping[str, Any]) -> Prepared           # once per machine, for all trials
    def build(config: TrialConfig, prepared: Prepared) -> Pipeline                   # per trial
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

from sweeper.core.errors import UserError
from sweeper.core.job import Job

Batch = dict[str, Tensor]
"""Named tensors, each with the batch as its first dimension."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Named arrays plus plain metadata, kept as memory-mapped files and shared by all trials.

    Attributes:
        arrays: By name; any dtype that a .npy file holds.
        meta: JSON values (vocabulary sizes, scalers, counts).
        synthetic: The data is made up; said wherever numbers rest on it.
        notes: Lines for the person: what was skipped, masked or made up.
    """

    arrays: Mapping[str, np.ndarray]
    meta: Mapping[str, Any] = field(default_factory=dict)
    synthetic: bool = False
    notes: Sequence[str] = ()


def take(tensors: Mapping[str, Tensor], index: Tensor) -> Batch:
    """Returns the rows `index` (int64, shape [batch]) of every tensor."""
    return {name: tensor.index_select(0, index) for name, tensor in tensors.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """A data set that can be read in batches.

    Attributes:
        tensors: What `gather` reads from; moved to the device by the `resident` loader.
        length: Number of samples.
        gather: `(tensors, index) -> batch`, with tensor operations only, so that it runs on the
            device. The default takes rows; a data set of windows gathers from a strided view.
        row: `(i) -> one sample` for the `rows` loader: what a hand-written `__getitem__` returns.
            The default indexes every tensor at `i`.
    """

    tensors: Mapping[str, Tensor]
    length: int
    gather: Callable[[Mapping[str, Tensor], Tensor], Batch] = take
    row: Callable[[int], Mapping[str, Any]] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that the tensors hold."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One trial's model and data, as plain PyTorch.

    Attributes:
        model: Called inside `loss`; this is what torch.compile is applied to.
        loss: `(model, batch) -> scalar`, the mean over the batch's samples.
        constant_loss: Validation loss of the best constant predictor, where it is known.
        best_loss: Best reachable validation loss, where the data is synthetic.
    """

    model: nn.Module
    train: Samples
    val: Samples
    loss: Callable[[nn.Module, Batch], Tensor]
    constant_loss: float | None = None
    best_loss: float | None = None


def load_module(job: Job) -> ModuleType:
    """Returns the user's pipeline module, imported.

    Raises:
        UserError: It is not there, cannot be imported, or lacks `prepare` or `build`.
    """
    for path in reversed(job.import_paths):
        if path not in sys.path:
            sys.path.insert(0, path)
    try:
        module = importlib.import_module(job.pipeline)
    except ModuleNotFoundError as error:
        if error.name and (job.pipeline == error.name or job.pipeline.startswith(f"{error.name}.")):
            raise UserError(
                f"`pipeline` must name a module that can be imported, but got {job.pipeline!r}, "
                f"which is not in {', '.join(job.import_paths)}."
            ) from None
        raise
    missing = [name for name in ("prepare", "build") if not hasattr(module, name)]
    if missing:
        raise UserError(f"{job.pipeline} must define `{'` and `'.join(missing)}`; see README.md, Pipelines.")
    return module
