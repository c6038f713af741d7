"""Nested values with tensors come back from one file the same, to the bit; what cannot be kept is named."""

from __future__ import annotations

import math
import struct
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from sweeper.errors import UserError
from sweeper.trainer.tensors import read, write


def through(tmp_path: Path, tree: Any) -> Any:
    write(tmp_path / "state.safetensors", tree)
    return read(tmp_path / "state.safetensors")


def same(one: Any, other: Any) -> bool:
    """Whether types, structure and every bit agree."""
    if isinstance(one, torch.Tensor):
        if one.dtype != other.dtype or one.shape != other.shape or one.stride() != other.stride():
            return False
        raw = [bytes(t.contiguous().flatten().view(torch.uint8).numpy()) for t in (one, other) if t.numel()]
        return raw[:1] == raw[1:]
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        alike = type(one) is type(other) and len(one) == len(other)
        return alike and all(map(same, one, other))
    if isinstance(one, float):
        return isinstance(other, float) and struct.pack("d", one) == struct.pack("d", other)
    return type(one) is type(other) and one == other


SCALARS = [
    0,
    -1,
    2**80,
    True,
    False,
    None,
    "",
    "é\n\0",
    0.1,
    -0.0,
    1e-310,
    math.pi,
    math.inf,
    -math.inf,
    math.nan,
]


def test_plain_values_keep_type_and_value(tmp_path: Path):
    tree = {
        "scalars": SCALARS,
        "tuples": (1, (2.0, ()), [(), [], {}]),
        3: {0: "int", "0": "text", None: 1},
        -1.5: "float",
        "looks": {"tensor": "0", "dict": [], "list": 1, "tuple": [2], "order": [0]},
    }
    assert same(through(tmp_path, tree), tree)
    assert same(through(tmp_path, []), [])
    assert same(through(tmp_path, 1.5), 1.5)


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool, torch.uint8, torch.int64],
    ids=str,
)
def test_every_bit_of_a_tensor_comes_back(dtype: torch.dtype, tmp_path: Path):
    torch.manual_seed(0)
    size = torch.empty(0, dtype=dtype).element_size()
    high = 2 if dtype == torch.bool else 256  # Every pattern, NaN payloads and denormals among them.
    raw = torch.randint(0, high, (12 * size,), dtype=torch.uint8)
    tensor = raw.view(dtype).reshape(3, 4)
    tree = {"m": tensor, "scalar": tensor[0, 0], "none": tensor[:0], "row": tensor[1], "column": tensor[:, 1]}
    expected = {**tree, "column": tensor[:, 1].clone()}
    assert same(through(tmp_path, tree), expected)


def test_permuted_strides_are_kept(tmp_path: Path):
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    tree = {
        "image": image,
        "transposed": torch.randn(3, 4).t(),
        "cube": torch.randn(2, 3, 4).permute(2, 0, 1),
    }
    found = through(tmp_path, tree)
    assert same(found, tree)
    assert found["image"].is_contiguous(memory_format=torch.channels_last)
    assert not found["image"].is_contiguous()


def test_tied_tensors_are_written_once_and_are_one_again(tmp_path: Path):
    tied = nn.Parameter(torch.randn(1000))
    part = torch.randn(10)
    found = through(tmp_path, {"a": tied, "b": [tied, tied.detach()], "whole": part, "part": part[2:5]})
    found["a"].fill_(1.0)
    assert found["b"][0].eq(1.0).all()
    assert found["b"][1].eq(1.0).all()
    assert not found["a"].requires_grad
    assert len(load_file(tmp_path / "state.safetensors")) == 3
    assert torch.equal(found["part"], part[2:5])
    views = through(tmp_path, {"whole": part, "other": part.view(2, 5), "turned": part.view(2, 5).t()})
    assert torch.equal(views["other"], part.view(2, 5))
    assert torch.equal(views["turned"], part.view(2, 5).t())
    number = torch.randn(3, dtype=torch.complex64)
    for found, wanted in zip(
        through(tmp_path, [number, number.conj()]), [number, number.conj()], strict=True
    ):
        assert torch.equal(found, wanted)
    empty = through(tmp_path, [torch.empty(0), torch.empty(0, 3)])
    assert [each.shape for each in empty] == [(0,), (0, 3)]


def test_optimiser_scaler_and_random_numbers(tmp_path: Path):
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
    for optimizer in (
        torch.optim.AdamW(model.parameters(), betas=(0.8, 0.9)),
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    ):
        model(torch.randn(5, 4)).sum().backward()
        optimizer.step()
        state = optimizer.state_dict()
        found = through(tmp_path, state)
        assert same(found, state)
        assert set(found["state"]) == {0, 1, 2, 3}
        optimizer.load_state_dict(found)
    scaler = torch.amp.GradScaler("cpu", enabled=True)
    assert scaler.state_dict()
    assert same(through(tmp_path, scaler.state_dict()), scaler.state_dict())
    before = torch.get_rng_state()
    drawn = torch.rand(4)
    torch.set_rng_state(through(tmp_path, before))
    assert torch.equal(torch.rand(4), drawn)


def test_what_is_read_does_not_change_with_the_file(tmp_path: Path):
    found = through(tmp_path, {"a": torch.ones(10_000)})
    with open(tmp_path / "state.safetensors", "r+b") as file:
        file.write(b"\0" * 20_000)
    assert found["a"].eq(1.0).all()


Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    ("tree", "place", "what"),
    [
        (
            {"optimizer": {"state": {0: {"lr": object()}}}},
            "['optimizer']['state'][0]['lr']",
            "a builtins.object",
        ),
        ([1, (2, Pair(1, 2))], "[1][1]", "Pair"),
        ([1, {2}], "[1]", "a builtins.set"),
        ({"f": len}, "['f']", "builtin_function"),
        ({(1, 2): 3}, "the state", "the key (1, 2)"),
        ({"a": torch.eye(2).to_sparse()}, "['a']", "sparse"),
        ({"a": torch.zeros(2, dtype=torch.complex128)}, "['a']", "complex128"),
        ({"a": torch.empty(2, device="meta")}, "['a']", "meta"),
    ],
)
def test_what_cannot_be_kept_is_named_with_its_place(tree: Any, place: str, what: str, tmp_path: Path):
    with pytest.raises(UserError) as raised:
        write(tmp_path / "state", tree)
    assert f"`{place}` is " in str(raised.value)
    assert what in str(raised.value)
    assert not (tmp_path / "state").exists()


def test_ordered_dictionaries_come_back_as_dictionaries(tmp_path: Path):
    assert same(through(tmp_path, OrderedDict(b=1, a=2)), {"b": 1, "a": 2})


@pytest.mark.parametrize("cut", [0, 4, 100, -1])
def test_a_damaged_file_is_an_error_in_one_line(cut: int, tmp_path: Path):
    path = tmp_path / "state.safetensors"
    write(path, {"a": torch.ones(100)})
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(UserError, match="is damaged"):
        read(path)
