"""Training samples: from the loader that feeds the backwards, or from the model's input without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .batches import Reader, reader_of
from .model import ModelInput

MISSES = 3
"""Steps without a batch from a loader before the model's input counts: loaders may be read ahead."""

_KEY = "_sweeper_pass"


class Pass:
    """One pass over a loader: its iterator.

    Attributes:
        loader: Identity of the loader.
        is_training: Whether a backward has followed one of its batches.
        pending: Samples fetched while that was not known.
        read: Returns the samples of a batch.
    """

    __slots__ = ("is_training", "loader", "pending", "read")

    def __init__(self, loader: int, is_training: bool, read: Callable[[Any], int]) -> None:
        self.loader, self.is_training, self.pending = loader, is_training, 0
        self.read = read


class Samples:
    """Tells training batches from others, and adds them up step by step.

    A loader trains if a backward follows its batches; its later passes train from their first batch,
    except while the model evaluates. A batch fetched without gradients is never one to train on.
    """

    def __init__(self, torch: Any, model_begins: Callable[[], None] | None = None) -> None:
        self._has_grad: Callable[[], bool] = torch.is_grad_enabled
        self._model = ModelInput(torch, model_begins)
        self._readers: dict[int, Reader | None] = {}
        self._training: set[int] = set()
        self._current: Pass | None = None
        self._fetched = 0
        self._has_single = False
        self._missed = self._uncounted = 0
        self._watch_at = MISSES

    @property
    def source(self) -> str:
        """Where the samples come from, in words; empty if nothing told them."""
        return "the loader's batches" if self.has_loader else self._model.source

    @property
    def has_loader(self) -> bool:
        """Whether batches to train on come from a loader."""
        return bool(self._training) and self._missed < MISSES

    @property
    def has_new(self) -> bool:
        """Whether a batch to train on was fetched since the latest step."""
        return self._fetched > 0

    def watch_model(self, optimizer: Any) -> None:
        """Watches the model whether or not its input is needed."""
        self._model.watch(optimizer)

    def reader(self, iterator: Any) -> Reader | None:
        """Returns how the batches of an iterator are read."""
        return self._readers.get(id(iterator._index_sampler))

    def trains(self, iterator: Any) -> bool:
        """Returns whether the batches of a loader's iterator are known to be for training."""
        found = iterator.__dict__.get(_KEY)
        is_known = found.is_training if found is not None else id(iterator._index_sampler) in self._training
        return is_known and self._has_grad()

    def fetched(self, iterator: Any, batch: Any, is_evaluating: bool) -> None:
        """Counts a batch that a loader gave."""
        found = iterator.__dict__.get(_KEY)
        if found is None:
            found = self._begin(iterator, batch, is_evaluating)
        if not self._has_grad():
            return
        self._current = found
        size = found.read(batch)
        if found.is_training and not is_evaluating:
            self._fetched += size
        else:
            found.pending += size

    def _begin(self, iterator: Any, batch: Any, is_evaluating: bool) -> Pass:
        # It belongs to the loader, and every iterator has it.
        sampler = iterator._index_sampler
        loader = id(sampler)
        if loader not in self._readers:
            size = getattr(sampler, "batch_size", None)
            self._readers[loader] = reader_of(batch, size)
            self._has_single = self._has_single or size == 1
        reader = self._readers[loader]
        read = reader.function() if reader is not None else _unknown
        found = Pass(loader, loader in self._training and not is_evaluating, read)
        setattr(iterator, _KEY, found)
        return found

    def backward(self) -> bool:
        """A backward begins; returns whether its loader was not known to train until now."""
        self._model.backward()
        current = self._current
        if current is None:
            return False
        is_news = current.loader not in self._training
        current.is_training = True
        self._training.add(current.loader)
        self._fetched += current.pending
        current.pending = 0
        return is_news

    def of_step(self, optimizer: Any, num_steps: int = 1) -> int:
        """Returns the samples to count for a step that has ended, or for several."""
        fetched, self._fetched = self._fetched, 0
        of_model = self._model.taken()
        if fetched:
            self._missed, self._watch_at = 0, MISSES
            if self._has_single:
                # Some data sets give whole batches as single items.
                self._model.watch(optimizer)
                return max(fetched, of_model)
            return fetched
        self._missed += num_steps
        if not of_model:
            self._uncounted += num_steps
            if self._missed >= self._watch_at:
                self._watch_at = self._missed + MISSES
                self._model.watch(optimizer)
            return 0
        if self._training:
            return of_model if self._missed > MISSES else 0
        # The steps before the model was watched had as many.
        uncounted, self._uncounted = self._uncounted, 0
        return of_model * (1 + uncounted)


def _unknown(_: Any) -> int:
    return 0
