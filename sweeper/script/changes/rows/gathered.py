"""Gathers batches from a data set that is collated once.

Comparisons in child processes, which leave no trace in the script's process, show which loaders allow it
(`collating`). The order of the indices and of all draws from generators stays as in torch's own iterators,
so that the losses are equal in every bit.
"""

from __future__ import annotations

import collections
import weakref
from collections.abc import Callable
from typing import Any

from ..change import ReportCallback, begin_passes, reason_of
from . import collating
from .on_device import DeviceRows
from .own_rows import OwnRows
from .witness import Witness, is_persistent


def gather(torch: Any, report: ReportCallback, *, on_device: bool = False) -> None:
    """Makes the passes that begin from now on gather their batches, if the batches stay the same.

    Args:
        on_device: Whether the rows are kept on the GPU once the training uses it.
    """
    iterator = iterator_class(torch)
    blocks = _Blocks(torch, report, on_device=on_device)

    def begin_pass(loader: Any, original: Callable[[Any], Any]) -> Any:
        block = blocks.block_of(loader)
        return original(loader) if block is None else iterator(loader, block, blocks)

    begin_passes(torch, begin_pass)


class _Blocks:
    """The collated data sets, by loader."""

    def __init__(self, torch: Any, report: ReportCallback, *, on_device: bool) -> None:
        self._torch, self._report, self._is_on_device = torch, report, on_device
        self._device_rows: weakref.WeakKeyDictionary[Any, DeviceRows] = weakref.WeakKeyDictionary()
        self._blocks: weakref.WeakKeyDictionary[Any, collating.CollatedRows | None] = (
            weakref.WeakKeyDictionary()
        )
        self._witnesses: weakref.WeakKeyDictionary[Any, Witness] = weakref.WeakKeyDictionary()

    def block_of(self, loader: Any) -> collating.CollatedRows | None:
        """Returns the collated data of a loader that begins a pass; None if it must not be gathered."""
        if loader not in self._blocks:
            try:
                block = collating.collate(self._torch, loader)
                if is_persistent(loader):
                    self._witnesses[loader] = Witness(self._torch, loader)
                self._blocks[loader] = block
                if self._is_on_device:
                    self._device_rows[loader] = DeviceRows(self._torch, block, self._report)
                else:
                    self._report(True)
            except Exception as error:
                self._blocks[loader] = None
                self._report(False, reason_of(error))
        elif self._blocks[loader] is not None:
            self.check(loader)
        return self._blocks[loader]

    def check(self, loader: Any) -> None:
        """Compares some collated rows with the data set, which may change from one epoch to the next.

        Persistent workers have the data set as it was in the first pass.
        """
        block = self._blocks[loader]
        if block is not None and (why := block.find_change(loader, self._witnesses.get(loader))):
            self._blocks[loader] = None
            self._report(False, why, was_applied=True)

    def device_rows(self, loader: Any) -> DeviceRows | None:
        """Returns the rows of a loader that are, or will be, on the GPU."""
        return self._device_rows.get(loader)

    def fetch(self, loader: Any) -> Any:
        """Returns the function with which a loader's rows are read if they are not gathered."""
        witness = self._witnesses.get(loader)
        return witness.fetch if witness is not None else collating.fetcher(self._torch, loader).fetch

    def is_kept(self, loader: Any) -> bool:
        """Returns whether a loader's data are still as they were."""
        return self._blocks.get(loader) is not None


def iterator_class(torch: Any) -> Any:
    """Returns a subclass of torch's loader iterators that gathers batches or reads rows itself."""
    base = torch.utils.data.dataloader._BaseDataLoaderIter
    pin = torch.utils.data._utils.pin_memory.pin_memory

    class GatheringIterator(base):  # type: ignore[misc, valid-type]
        """Draws as torch's iterators do: the sampler's `iter`, the base seed, then indices ahead.

        Without collated data, it reads the rows of each batch itself.
        """

        def __init__(
            self,
            loader: Any,
            collated: collating.CollatedRows | None = None,
            blocks: _Blocks | None = None,
            own_rows: OwnRows | None = None,
        ) -> None:
            super().__init__(loader)
            self._collated, self._blocks, self._own_rows = collated, blocks, own_rows
            self._loader = weakref.ref(loader)
            self._device_rows = blocks.device_rows(loader) if blocks is not None else None
            if own_rows is not None:
                self._fetch = own_rows.fetch
            elif blocks is not None:
                self._fetch = blocks.fetch(loader)
            self._num_ahead = loader.num_workers * (loader.prefetch_factor or 0)
            if loader.num_workers:
                self._reset(loader, True)

        def _reset(self, loader: Any, first_iter: bool = False) -> None:
            # With workers, torch's own iterator asks the sampler twice in the first pass.
            super()._reset(loader, first_iter)
            if self._own_rows is not None:
                self._own_rows.begin(loader)
            if self._blocks is not None:
                if not first_iter:
                    self._blocks.check(loader)
                self._is_kept = self._blocks.is_kept(loader)
            self._indices: collections.deque[Any] = collections.deque()
            for _ in range(self._num_ahead):
                self._read_index()

        def _read_index(self) -> None:
            try:
                self._indices.append(self._next_index())
            except StopIteration:
                return

        def _next_data(self) -> Any:
            if not self._num_ahead:
                return self._batch(self._next_index())
            if not self._indices:
                if self._own_rows is not None and (loader := self._loader()) is not None:
                    self._own_rows.end(loader)
                raise StopIteration
            batch = self._batch(self._indices.popleft())
            self._read_index()
            return batch

        def _batch(self, indices: Any) -> Any:
            batch = None
            if self._device_rows is not None and self._is_kept:
                batch = self._device_rows.gather(indices)
                if batch is not None:
                    return batch
            if self._collated is not None and self._is_kept:
                batch = self._collated.gather(indices, pinned=bool(self._pin_memory))
            if batch is None:
                batch = self._fetch(indices)
            return pin(batch, self._pin_memory_device) if self._pin_memory else batch

        _is_kept = True

        def _shutdown_workers(self) -> None:
            """Does nothing: some frameworks end an iterator's workers, and this one has none."""

    return GatheringIterator
