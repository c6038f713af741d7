"""Counts training samples from the loader that feeds the training; without one, from the model's input."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from ..changes.facts import Facts
from .batches import SizeReader, flat_kind, reader_of
from .facts import loader_settings
from .model import ModelInput
from .points import Points

MISSES = 3
"""Steps without a loader's batch before the model's input counts, since loaders may be read ahead."""

STREAM = 1
"""Torch's kind of an `IterableDataset`."""
PASS = "_sweeper_pass"
"""Attribute of a loader's iterator that contains its `Pass`."""


ROWS = "_sweeper_rows"
"""Attribute of a loader's iterator that contains the numbers of indices of the batches to come."""


def note_index(iterator: Any, index: Any) -> None:
    """Notes the rows that an iterator is about to fetch for a batch, one or several batches ahead."""
    rows = getattr(iterator, ROWS, None)
    if rows is None:
        rows = deque()
        setattr(iterator, ROWS, rows)
    rows.append(len(index) if type(index) is list else _num_rows(iterator, index))


def forget_indices(iterator: Any) -> None:
    """Forgets the batches to come, since a pass has begun."""
    rows = getattr(iterator, ROWS, None)
    if rows:
        rows.clear()


def _num_rows(iterator: Any, index: Any) -> int:
    """Returns the number of rows of an index that is no list; 0 if unknown."""
    try:
        # Without a batch sampler, an index such as a tuple or a text may be the key of a single row.
        return len(index) if iterator._auto_collation or len(index.shape) == 1 else 0
    except (AttributeError, TypeError):
        return 0


class KnownLoader:
    """A loader, identified by the sampler that it and all its iterators share.

    Attributes:
        batch_size: Its batch size; None if unknown.
        settings: Its settings, as facts about a training.
        is_training: Whether a backward pass has followed one of its batches.
        counts_indices: Whether a batch has as many samples as the loader has asked for rows.
        read: Returns the number of samples in a batch from its structure.
        latest_step: The latest step that its batches were fetched for.
    """

    __slots__ = (
        *("_sampler", "batch_size", "counts_indices", "is_training", "latest_step", "read", "settings"),
    )

    def __init__(self, iterator: Any, batch: Any) -> None:
        sampler = iterator._index_sampler
        try:
            # A new loader must not be mistaken for a deleted one with the same id.
            self._sampler: Callable[[], Any] = weakref.ref(sampler)
        except TypeError:
            self._sampler = lambda: sampler
        self.batch_size = getattr(sampler, "batch_size", None)
        self.settings: Facts = {**loader_settings(iterator), "batch": flat_kind(batch)}
        self.is_training = False
        self.latest_step = -2
        rows = _rows_of(iterator)
        num_rows = rows[0] if rows else 0
        reader = self.learn(batch, num_rows)
        # A stream may end within a batch, so its rows are read where the batch shows them.
        is_shown = reader is not None and iterator._dataset_kind == STREAM and reader.read(batch) == num_rows
        # A single row may be a whole batch.
        self.counts_indices = num_rows > 0 and self.batch_size != 1 and not is_shown

    def is_of(self, sampler: Any) -> bool:
        """Returns whether this is the loader of a sampler."""
        return self._sampler() is sampler

    @property
    def sampler(self) -> Any:
        """Its sampler; None once that is gone."""
        return self._sampler()

    def learn(self, batch: Any, num_rows: int = 0) -> SizeReader | None:
        """Learns how to read batches like this one, which has `num_rows` if that is known."""
        reader = reader_of(batch, num_rows or self.batch_size)
        self.read: Callable[[Any], int] = reader.function() if reader is not None else _unknown_size
        return reader


class Pass:
    """One pass over a loader, which has one iterator.

    Attributes:
        loader: Its loader.
        is_training: Whether its batches count: a backward pass has followed one of the loader's
            batches, and the model is not being evaluated.
        pending: Samples fetched before that was known.
        num_steps: Number of steps that its batches were fetched for.
        read: Returns the number of samples in a batch.
        latest: The number of samples in the latest batch.
    """

    __slots__ = ("is_training", "latest", "loader", "num_steps", "pending", "read")

    def __init__(self, loader: KnownLoader, iterator: Any, is_training: bool) -> None:
        self.loader, self.is_training, self.pending = loader, is_training, 0
        self.num_steps = self.latest = 0
        rows = _rows_of(iterator)
        if loader.counts_indices and rows is not None:
            take = rows.popleft
            self.read: Callable[[Any], int] = lambda _: take()
        else:
            self.read = loader.read
            if rows is not None:
                # They are not needed.
                setattr(iterator, ROWS, deque(maxlen=0))

    def size(self, batch: Any) -> int:
        """Returns the number of samples in a batch."""
        try:
            self.latest = self.read(batch)
        except (AttributeError, IndexError, KeyError, TypeError):
            # Either a batch is given again, or not all batches are alike.
            if not self.loader.counts_indices:
                self.loader.learn(batch)
                self.read = self.loader.read
                self.latest = self.read(batch)
        return self.latest


class SampleCounter:
    """Distinguishes training batches from others, and adds them up step by step.

    A loader trains if a backward pass follows its batches; its later passes train from their first
    batch, except while the model evaluates. A batch fetched with gradients off is never trained on.

    Several loaders may feed a step: a pass that is asked in two steps, or a loader in two consecutive ones,
    trains as well. The one that gives the most rows to a step counts.

    Attributes:
        current: The pass that gave the latest batch.
        num_batches: Number of batches of the loader that counts in the latest step.
        has_single: Whether a loader gives single items, which may be whole batches.
    """

    def __init__(self, torch: Any, points: Points) -> None:
        self._has_grad: Callable[[], bool] = torch.is_grad_enabled
        self._model = ModelInput(torch, points)
        self._loaders: dict[int, KnownLoader] = {}
        self._has_training = False
        self.current: Pass | None = None
        self._leading: KnownLoader | None = None
        self._fed: dict[Pass, list[int]] = {}
        # Number of the current step, without those that are only counted (`fast_path`).
        self._step = 0
        self._num_loaders = self.num_batches = 0
        self.has_single = False
        self._missed = self._uncounted = 0
        self._watch_at = MISSES

    @property
    def source(self) -> str:
        """Describes where the samples come from; empty while that is unknown."""
        if not self.has_loader:
            return self._model.source
        if self._num_loaders > 1:
            return f"the batches of the loader with the most rows of {self._num_loaders}"
        return "the loader's batches"

    @property
    def loader(self) -> Facts:
        """Facts about the loader that counts; empty without one."""
        return self._leading.settings if self._leading is not None and self.has_loader else {}

    @property
    def sampler(self) -> Any:
        """The sampler of the loader that counts; None without one."""
        return self._leading.sampler if self._leading is not None and self.has_loader else None

    @property
    def has_loader(self) -> bool:
        """Whether batches to train on come from a loader."""
        return self._has_training and self._missed < MISSES

    @property
    def has_new(self) -> bool:
        """Whether a batch to train on was fetched since the latest step."""
        return any(fed[0] for loader_pass, fed in self._fed.items() if loader_pass.is_training)

    @property
    def are_usual(self) -> bool:
        """Whether the batches fetched since the latest step are of one loader that shows their size."""
        return len(self._fed) == 1 and self.has_new and not self.has_single

    def add(self, samples: int) -> None:
        """Adds samples that were fetched for the next step."""
        if samples and self.current is not None:
            self._feed(self.current, samples)

    def _feed(self, loader_pass: Pass, samples: int) -> None:
        fed = self._fed.setdefault(loader_pass, [0, 0])
        fed[0] += samples
        fed[1] += 1

    def watch_model(self, optimizer: Any, begins: Callable[[], None]) -> None:
        """Watches the model whether or not its input is needed.

        Args:
            begins: Called whenever the model is called.
        """
        self._model.watch(optimizer, begins)

    def reader(self, iterator: Any, batch: Any) -> SizeReader | None:
        """Returns a reader for the batches of an iterator."""
        loader_pass = iterator.__dict__.get(PASS)
        size = loader_pass.latest if loader_pass is not None else 0
        return reader_of(batch, size or getattr(iterator._index_sampler, "batch_size", None))

    def size(self, iterator: Any, batch: Any) -> int:
        """Returns the number of samples in a batch of a pass that was fetched from before."""
        return int(iterator.__dict__[PASS].size(batch))

    def trains(self, iterator: Any) -> bool:
        """Returns whether the batches of a loader's iterator are known to be for training."""
        source = iterator.__dict__.get(PASS)
        if source is None:
            source = self._loader_of(iterator._index_sampler)
        return source is not None and source.is_training and self._has_grad()

    def _loader_of(self, sampler: Any) -> KnownLoader | None:
        loader = self._loaders.get(id(sampler))
        return loader if loader is not None and loader.is_of(sampler) else None

    def count_batch(self, iterator: Any, batch: Any, is_evaluating: bool) -> None:
        """Counts a batch that a loader returned."""
        loader_pass = iterator.__dict__.get(PASS)
        if loader_pass is None:
            loader_pass = self._begin(iterator, batch, is_evaluating)
        size = loader_pass.size(batch)
        if not self._has_grad():
            return
        self.current = loader_pass
        if is_evaluating:
            loader_pass.pending += size
        else:
            self._feed(loader_pass, size)

    def _begin(self, iterator: Any, batch: Any, is_evaluating: bool) -> Pass:
        sampler = iterator._index_sampler
        loader = self._loader_of(sampler)
        if loader is None:
            loader = self._loaders[id(sampler)] = KnownLoader(iterator, batch)
            self.has_single = self.has_single or loader.batch_size == 1
        loader_pass = Pass(loader, iterator, loader.is_training and not is_evaluating)
        setattr(iterator, PASS, loader_pass)
        return loader_pass

    def backward(self) -> bool:
        """Notes that a backward pass begins; returns whether its loader was not known to train until now."""
        self._model.backward()
        current = self.current
        if current is None:
            return False
        is_news = not current.loader.is_training
        current.is_training = current.loader.is_training = self._has_training = True
        if current.pending:
            self._fed.setdefault(current, [0, 1])[0] += current.pending
            current.pending = 0
        for loader_pass in self._fed:
            # An evaluation asks for a whole pass between two steps, and not in the next one.
            if loader_pass.num_steps or loader_pass.loader.latest_step == self._step - 1:
                loader_pass.is_training = loader_pass.loader.is_training = True
                loader_pass.pending = 0
        return is_news

    def count_step(self, optimizer: Any, num_steps: int = 1) -> int:
        """Returns the samples to count for a step that has ended, or for several."""
        fetched = self._end_step()
        of_model = self._model.pop_samples()
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

    def _end_step(self) -> int:
        """Returns the samples of the loader that gave the most of them since the latest step."""
        rows: dict[KnownLoader, list[int]] = {}
        for loader_pass, (samples, batches) in self._fed.items():
            loader_pass.num_steps += 1
            loader_pass.loader.latest_step = self._step
            if loader_pass.is_training:
                total = rows.setdefault(loader_pass.loader, [0, 0])
                total[0] += samples
                total[1] += batches
            else:
                loader_pass.pending += samples
        self._fed.clear()
        self._step += 1
        if not rows:
            return 0
        self._num_loaders = max(self._num_loaders, len(rows))
        self._leading = max(rows, key=lambda loader: rows[loader][0])
        samples, self.num_batches = rows[self._leading]
        return samples


def _rows_of(iterator: Any) -> deque[int] | None:
    """Returns the numbers of indices of an iterator's batches to come; None if they are not known."""
    rows: deque[int] | None = getattr(iterator, ROWS, None)
    return rows


def _unknown_size(_: Any) -> int:
    return 0
