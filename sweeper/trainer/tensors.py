"""Stores nested values with tensors in one safetensors file, exactly and without pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sweeper.errors import UserError

_TREE = "tree"
"""Key in the file's metadata: the nested value as JSON, with tensors by their names in the file.

Every container is tagged with its type (`{"dict": [[key, value], ...]}`, `{"tuple": [...]}`,
`{"list": [...]}`, `{"tensor": name, "order": [...]}`), so that integer keys and tuples survive.
"""

_DTYPES = frozenset(
    getattr(torch, name)
    for name in (
        *("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"),
        *("uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "complex64"),
    )
)


def write(path: Path, tree: Any) -> None:
    """Writes dictionaries, lists, tuples, numbers, strings, None and tensors to `path`.

    Tensors with the same memory and shape are written once, and share memory again when read; other
    views of shared memory are written as copies. Strides are kept if dimensions are only permuted,
    as in channels_last.

    Raises:
        UserError: A value could only be pickled; the message says where it is.
    """
    from safetensors.torch import save_file

    writer = _TreeWriter()
    described = writer.describe(tree, "")
    save_file(writer.tensors, path, metadata={_TREE: json.dumps(described)})


def read(path: Path) -> Any:
    """Returns the value given to `write`, with its tensors on the host.

    Raises:
        UserError: The file is damaged, or of another kind.
    """
    from safetensors import SafetensorError, safe_open

    try:
        # Read rather than mapped: a mapping would change with the file, and crash if its network fails.
        with safe_open(path, framework="pt", backend="pread") as file:
            described = json.loads((file.metadata() or {})[_TREE])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise UserError(f"{path} is damaged or not the state of a training run ({error}).") from error
    return _build(described, tensors)


class _TreeWriter:
    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._descriptions: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._kept: list[Tensor] = []
        self._addresses: set[int] = set()

    def describe(self, value: Any, place: str) -> Any:
        """Returns `value` as JSON, and collects its tensors."""
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Tensor):
            return self._tensor(value, place)
        if isinstance(value, Mapping):
            return {
                "dict": [
                    [self._key(key, place), self.describe(child, f"{place}[{key!r}]")]
                    for key, child in value.items()
                ]
            }
        # A named tuple would come back as a plain one.
        if type(value) in (list, tuple):
            items = [self.describe(child, f"{place}[{i}]") for i, child in enumerate(value)]
            return {type(value).__name__: items}
        raise _refusal(f"a {type(value).__module__}.{type(value).__qualname__}", place)

    @staticmethod
    def _key(key: Any, place: str) -> Any:
        if key is not None and not isinstance(key, bool | int | float | str):
            raise _refusal(f"the key {key!r}", place)
        return key

    def _tensor(self, value: Tensor, place: str) -> dict[str, Any]:
        if value.layout != torch.strided or value.dtype not in _DTYPES or value.is_meta:
            raise _refusal(f"a tensor of {value.layout} {value.dtype} on {value.device}", place)
        flags = (value.is_conj(), value.is_neg())
        where = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride(), flags)
        if where in self._descriptions:
            return self._descriptions[where]
        strides = value.stride()
        name, order = str(len(self.tensors)), sorted(range(value.ndim), key=lambda d: -strides[d])
        dense = value.detach().permute(order)
        described: dict[str, Any] = {"tensor": name}
        if dense.is_contiguous() and order != list(range(value.ndim)):
            described["order"] = order
        else:
            dense = value.detach().contiguous()
        dense = dense.cpu().resolve_conj().resolve_neg()
        # The library does not accept two tensors that share memory.
        memory = dense.untyped_storage()
        if memory.nbytes() != dense.numel() * dense.element_size() or memory.data_ptr() in self._addresses:
            dense = dense.clone()
        self._addresses.add(dense.untyped_storage().data_ptr())
        self._kept.append(value)  # So that no other tensor gets its address.
        self.tensors[name] = dense
        self._descriptions[where] = described
        return described


def _refusal(what: str, place: str) -> UserError:
    return UserError(
        "a checkpoint can hold numbers, strings, lists, dictionaries and tensors, but"
        f" `{place or 'the state'}` is {what}, which would need pickle. Store it as one of those."
    )


def _build(described: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(described, Mapping):
        return described
    if "tensor" in described:
        tensor, order = tensors[described["tensor"]], described.get("order")
        # The same description may occur twice, for one tensor: permuted views share its memory.
        return tensor.permute([order.index(d) for d in range(len(order))]) if order else tensor
    if "dict" in described:
        return {key: _build(value, tensors) for key, value in described["dict"]}
    (kind, items), *_ = described.items()
    built = [_build(item, tensors) for item in items]
    return tuple(built) if kind == "tuple" else built
