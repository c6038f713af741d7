"""Counts training samples from the loader that feeds the training; without one, from the model's input."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from .batches import Reader, flat_kind, reader_of
from .facts import of_loader
from .model import ModelInput
from .points import Points

MISSES = 3
"""Steps without a loader's batch before the model's input counts, since loaders may be read ahead."""

PASS = "_sweeper_pass"
"""Attribute of a loader's iterator that contains its `Pass`."""


class KnownLoader:
    """A loader, identified by the sampler that it and all its iterators share.

    Attributes:
        batch_size: Its batch size; None if unknown.
        settings: Its settings (`sweeper.inject.facts`).
        is_training: Whether a backward pass has followed one of its batches.
        read: Returns the number of samples in a batch.
    """

    __slots__ = ("_sampler", "batch_size", "is_training", "read", "settings")

    def __init__(self, iterator: Any, batch: Any) -> None:
        sampler = iterator._index_sampler
        try:
            # A new loader must not be mistaken for a deleted one with the same id.
            self._sampler: Callable[[], Any] = weakref.ref(sampler)
        except TypeError:
            self._sampler = lambda: sampler
        self.batch_size = getattr(sampler, "batch_size", None)
        self.settings = {**of_loader(iterator), "batch": flat_kind(batch)}
        self.is_training = False
        self.learn(batch)

    def is_of(self, sampler: Any) -> bool:
        """Returns whether this is the loader of a sampler."""
        return self._sampler() is sampler

    @property
    def sampler(self) -> Any:
        """Its sampler; None once that is gone."""
        return self._sampler()

    def learn(self, batch: Any) -> None:
        """Learns how to read batches like this one."""
        reader = reader_of(batch, self.batch_size)
        self.read: Callable[[Any], int] = reader.function() if reader is not None else _unknown


class Pass:
    """One pass over a loader, which has one iterator.

    Attributes:
        loader: Its loader.
        is_training: Whether its batches count: a backward pass has followed one of the loader's
            batches, and the model is not being evaluated.
        pending: Samples fetched before that was known.
        read: Returns the number of samples in a batch.
    """

    __slots__ = ("is_training", "loader", "pending", "read")

    def __init__(self, loader: KnownLoader, is_training: bool) -> None:
        self.loader, self.is_training, self.pending = loader, is_training, 0
        self.read = loader.read


class Samples:
    """Distinguishes training batches from others, and adds them up step by step.

    A loader trains if a backward pass follows its batches; its later passes train from their first
    batch, except while the model evaluates. A batch fetched with gradients off is never trained on.

    Attributes:
        current: The pass that gave the latest batch.
        has_single: Whether a loader gives single items, which may be whole batches.

    Args:
        model_begins: Called when the model is called, once the model is watched.
    """

    def __init__(self, torch: Any, points: Points, model_begins: Callable[[], None] | None = None) -> None:
        self._has_grad: Callable[[], bool] = torch.is_grad_enabled
        self._model = ModelInput(torch, points, model_begins)
        self._loaders: dict[int, KnownLoader] = {}
        self._has_training = False
        self.current: Pass | None = None
        self._fetched = 0
        self.has_single = False
        self._missed = self._uncounted = 0
        self._watch_at = MISSES

    @property
    def source(self) -> str:
        """Describes where the samples come from; empty while that is unknown."""
        return "the loader's batches" if self.has_loader else self._model.source

    @property
    def loader(self) -> dict[str, Any]:
        """Facts about the loader of the latest batch; empty without one."""
        return self.current.loader.settings if self.current is not None and self.has_loader else {}

    @property
    def sampler(self) -> Any:
        """The sampler of the loader of the latest batch; None without one."""
        return self.current.loader.sampler if self.current is not None and self.has_loader else None

    @property
    def has_loader(self) -> bool:
        """Whether batches to train on come from a loader."""
        return self._has_training and self._missed < MISSES

    @property
    def has_new(self) -> bool:
        """Whether a batch to train on was fetched since the latest step."""
        return self._fetched > 0

    @property
    def are_usual(self) -> bool:
        """Whether the batches fetched since the latest step show their number of samples."""
        return self._fetched > 0 and not self.has_single

    def add(self, samples: int) -> None:
        """Adds samples that were fetched for the next step."""
        self._fetched += samples

    def watch_model(self, optimizer: Any) -> None:
        """Watches the model whether or not its input is needed."""
        self._model.watch(optimizer)

    def reader(self, iterator: Any, batch: Any) -> Reader | None:
        """Returns a reader for the batches of an iterator."""
        return reader_of(batch, getattr(iterator._index_sampler, "batch_size", None))

    def trains(self, iterator: Any) -> bool:
        """Returns whether the batches of a loader's iterator are known to be for training."""
        found = iterator.__dict__.get(PASS)
        if found is None:
            found = self._loader_of(iterator._index_sampler)
        return found is not None and found.is_training and self._has_grad()

    def _loader_of(self, sampler: Any) -> KnownLoader | None:
        found = self._loaders.get(id(sampler))
        return found if found is not None and found.is_of(sampler) else None

    def fetched(self, iterator: Any, batch: Any, is_evaluating: bool) -> None:
        """Counts a batch that a loader returned."""
        found = iterator.__dict__.get(PASS)
        if found is None:
            found = self._begin(iterator, batch, is_evaluating)
        if not self._has_grad():
            return
        self.current = found
        try:
            size = found.read(batch)
        except (AttributeError, IndexError, KeyError, TypeError):
            # Not all batches are alike.
            found.loader.learn(batch)
            found.read = found.loader.read
            size = found.read(batch)
        if found.is_training and not is_evaluating:
            self._fetched += size
        else:
            found.pending += size

    def _begin(self, iterator: Any, batch: Any, is_evaluating: bool) -> Pass:
        sampler = iterator._index_sampler
        loader = self._loader_of(sampler)
        if loader is None:
            loader = self._loaders[id(sampler)] = KnownLoader(iterator, batch)
            self.has_single = self.has_single or loader.batch_size == 1
        found = Pass(loader, loader.is_training and not is_evaluating)
        setattr(iterator, PASS, found)
        return found

    def backward(self) -> bool:
        """Notes that a backward pass begins; returns whether its loader was not known to train until now."""
        self._model.backward()
        current = self.current
        if current is None:
            return False
        is_news = not current.loader.is_training
        current.is_training = current.loader.is_training = self._has_training = True
        self._fetched += current.pending
        current.pending = 0
        return is_news

    def of_step(self, optimizer: Any, num_steps: int = 1) -> int:
        """Returns the samples to count for a step that has ended, or for several."""
        fetched, self._fetched = self._fetched, 0
        of_model = self._model.taken()
        if fetched:
            self._missed, self._watch_at = 0, MISSES
            if self.has_single:
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
        if self._has_training:
            return of_model if self._missed > MISSES else 0
        # Each step before the model was watched counts the same number of samples.
        uncounted, self._uncounted = self._uncounted, 0
        return of_model * (1 + uncounted)


def _unknown(_: Any) -> int:
    return 0
