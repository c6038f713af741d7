"""Looks at the first batches of a training for padding, rows that come twice, and idle workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..changes.facts import Facts
from .samples import STREAM

COMPARED = 4096
"""Number of elements of a batch by which it is recognised."""
MASKS = ("attention_mask", "padding_mask")
MIN_LENGTH = 8
"""Fewest columns of a batch of sequences: a table may have the same value in its last columns."""
MIN_PADDING = 0.05
"""Smallest share of padding that is a fact."""


class FirstBatches:
    """What the first batches of a training show."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._seen: set[tuple[Any, ...]] = set()
        self._repeats, self._num_idle = False, 0
        self._num_padded = self._num_elements = 0

    def add(self, iterator: Any, batch: Any) -> None:
        """Looks at a batch."""
        tensors = [leaf for leaf in _leaves(batch) if self._torch.is_tensor(leaf[1])]
        if iterator._dataset_kind == STREAM and iterator._num_workers > 1 and tensors:
            self._num_idle = list(getattr(iterator, "_workers_status", ())).count(False)
            first = tensors[0][1]
            key = (tuple(first.shape), *first.detach().flatten()[:COMPARED].tolist())
            self._repeats = self._repeats or key in self._seen
            self._seen.add(key)
        # A mask is surer than its sequences.
        tensors.sort(key=lambda leaf: leaf[0] not in MASKS)
        padding = next(filter(None, (self._padding(*leaf) for leaf in tensors)), None)
        if padding is not None:
            self._num_padded += padding[0]
            self._num_elements += padding[1]

    def _padding(self, name: str, tensor: Any) -> tuple[int, int] | None:
        """Returns the number of elements that pad sequences, and of all; None if the tensor has none."""
        torch = self._torch
        if tensor.dim() != 2 or tensor.dtype not in (torch.int64, torch.int32, torch.bool) or tensor.is_cuda:
            return None
        if name in MASKS:
            return int((tensor == 0).sum()), tensor.numel()
        if tensor.dtype == torch.bool or tensor.shape[1] < MIN_LENGTH:
            return None
        # A value that fills the ends of rows, and is nowhere else.
        value = tensor[:, -1].mode().values
        is_value = tensor == value
        num_at_ends = int(is_value.flip(1).cumprod(1).sum())
        # One at the end of each row marks the end.
        is_padding = int(is_value.sum()) == num_at_ends > len(tensor)
        return (num_at_ends, tensor.numel()) if is_padding else None

    def facts(self) -> Facts:
        """Returns what is worth a word."""
        facts: Facts = {}
        if self._num_idle:
            facts["idle_workers"] = self._num_idle
        if self._repeats:
            facts["repeats_rows"] = True
        if self._num_elements and (share := self._num_padded / self._num_elements) >= MIN_PADDING:
            facts["padding_share"] = round(share, 3)
        return facts


def _leaves(batch: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the parts of a batch with the key under which each is."""
    if isinstance(batch, Mapping):
        for key, part in batch.items():
            yield from _leaves(part, str(key))
    elif isinstance(batch, (list, tuple)):
        for part in batch:
            yield from _leaves(part, name)
    else:
        yield name, batch
