"""Reads the number of samples from a batch, whatever its structure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

MAX_DEPTH, MAX_ITEMS = 4, 16
LENGTH, VALUE = "length", "value"
ITEM, ATTRIBUTE = "item", "attribute"

if TYPE_CHECKING:
    # Path to a part: `item` and its key, or `attribute` and its name, outermost first.
    Path = tuple[tuple[str, Any], ...]


class SizeReader(NamedTuple):
    """The location of a batch's number of samples: a dimension of a tensor, a length, or a number."""

    path: Path
    what: int | str

    def part(self, batch: Any) -> Any:
        """Returns the part of a batch that is read."""
        for kind, key in self.path:
            batch = batch[key] if kind == ITEM else getattr(batch, key)
        return batch

    def read(self, batch: Any) -> int:
        """Returns the number of samples in a batch."""
        part, what = self.part(batch), self.what
        if what == LENGTH:
            return len(part)
        return int(part if what == VALUE else part.shape[what])

    def function(self) -> Callable[[Any], int]:
        """Returns `read`, or a faster form for the most common case, the first dimension of an item."""
        if self.what == 0 and len(self.path) == 1 and self.path[0][0] == ITEM:
            key = self.path[0][1]
            return lambda batch: batch[key].shape[0]
        return self.read


def flat_kind(batch: Any) -> str:
    """Returns `list`, `tuple` or `dict` for a batch of that type that contains only tensors, else nothing."""
    if type(batch) not in (list, tuple, dict) or not batch:
        return ""
    parts = list(batch.values()) if type(batch) is dict else batch
    is_flat = all(isinstance(getattr(part, "shape", None), tuple) and part.shape for part in parts)
    return type(batch).__name__ if is_flat else ""


def reader_of(batch: Any, expected: int | None = None) -> SizeReader | None:
    """Returns a reader for batches like this one; None if there is nothing to read.

    Args:
        batch: Tensors in any nesting of sequences, mappings and objects.
        expected: The loader's batch size, which distinguishes the batch dimension from others.
    """
    sizes = list(_sizes(batch, (), 0))
    if not sizes:
        return None
    alike = [reader for reader, size in sizes if size == expected] or [reader for reader, _ in sizes]
    # A tensor's second dimension is the batch only if nothing else has its size.
    return min(alike, key=lambda reader: (VALUE, 0, LENGTH, 1).index(reader.what))


def _sizes(part: Any, path: Path, depth: int) -> Iterator[tuple[SizeReader, int]]:
    """Yields a reader and the value for everything that may be a number of samples."""
    shape = getattr(part, "shape", None)
    if isinstance(shape, tuple):
        yield from ((SizeReader(path, dimension), size) for dimension, size in enumerate(shape[:2]))
    elif isinstance(getattr(part, "num_graphs", None), int):
        # The tensors of a batch of graphs have a row per node.
        yield SizeReader((*path, (ATTRIBUTE, "num_graphs")), VALUE), part.num_graphs
    elif depth < MAX_DEPTH:
        if isinstance(part, Mapping):
            inside = [(ITEM, key, part[key]) for key in list(part)[:MAX_ITEMS]]
        elif isinstance(part, (list, tuple)):
            inside = [(ITEM, index, item) for index, item in enumerate(part[:MAX_ITEMS])]
        else:
            inside = [(ATTRIBUTE, *pair) for pair in list(getattr(part, "__dict__", {}).items())[:MAX_ITEMS]]
        for kind, key, value in inside:
            yield from _sizes(value, (*path, (kind, key)), depth + 1)
        if isinstance(part, (list, tuple)) and part:
            yield SizeReader(path, LENGTH), len(part)
