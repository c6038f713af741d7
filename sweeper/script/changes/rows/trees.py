"""Takes batches apart into trees of tensors, puts them together, and compares them bit for bit."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from ..change import ChangeRefusedError


def split_batch(torch: Any, batch: Any, leaves: list[Any], num_rows: int) -> Any:
    """Returns the structure of a batch, which JSON can hold, and adds its tensors to `leaves`.

    Raises:
        ChangeRefusedError: It has parts other than tensors with a row for each sample.
    """
    kind = type(batch)
    if kind is torch.Tensor:
        if batch.device.type != "cpu" or batch.layout != torch.strided or batch.requires_grad:
            raise ChangeRefusedError(
                "its batches have tensors that are on a GPU, are sparse, or require gradients"
            )
        if batch.dim() == 0 or batch.shape[0] != num_rows:
            raise ChangeRefusedError("its batches have tensors without a row for each sample")
        leaves.append(batch)
        return None
    if kind is dict and all(type(key) in (str, int) for key in batch):
        return ["dict", [[key, split_batch(torch, part, leaves, num_rows)] for key, part in batch.items()]]
    is_named = issubclass(kind, tuple) and hasattr(kind, "_fields")
    name = f"{kind.__module__}:{kind.__qualname__}" if is_named else kind.__name__
    if kind in (list, tuple) or (is_named and _kind(name) is kind):
        return [name, [split_batch(torch, part, leaves, num_rows) for part in batch]]
    raise ChangeRefusedError(f"its batches have parts of type {kind.__name__}")


def build_batch(tree: Any, leaves: Iterator[Any]) -> Any:
    """Returns the batch with a structure and some tensors."""
    if tree is None:
        return next(leaves)
    name, parts = tree
    if name == "dict":
        return {key: build_batch(part, leaves) for key, part in parts}
    values = [build_batch(part, leaves) for part in parts]
    return values if name == "list" else tuple(values) if name == "tuple" else _kind(name)(*values)


def _kind(name: str) -> Any:
    """Returns the class of a named tuple; None if its module has none of that name."""
    module, _, kind = name.partition(":")
    return getattr(sys.modules.get(module), kind, None)


def are_equal(torch: Any, one: Any, other: Any) -> bool:
    """Returns whether two batches are equal in every bit, and in the layout of their tensors."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(are_equal(torch, one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(are_equal(torch, *pair) for pair in zip(one, other))
    if not isinstance(one, torch.Tensor):
        return False
    if one.dtype != other.dtype or one.shape != other.shape or one.stride() != other.stride():
        return False
    return bool(torch.equal(_bits(torch, one), _bits(torch, other)))


def _bits(torch: Any, tensor: Any) -> Any:
    # A NaN is equal to itself here, and 0.0 is not -0.0.
    return tensor.contiguous().view(-1).view(torch.uint8)
