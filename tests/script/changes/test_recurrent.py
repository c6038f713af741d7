"""Recurrent layers on a GPU under bfloat16: cuDNN would compute them in float16, so they leave autocast."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from strict_cuda import StrictCuda
from torch.nn.utils.rnn import pack_padded_sequence

from sweeper.script.changes.recurrent import NAMES, keep_in_float32, to_float32

Seen = list[tuple[bool, torch.dtype]]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    """Whether autocast was on when a layer computed, and in which type its input was."""
    calls: Seen = []

    def spying(original: Any) -> Any:
        def forward(layer: Any, x: Any, *states: Any) -> Any:
            calls.append((torch.is_autocast_enabled("cuda"), x.dtype))
            return original(layer, x, *states)

        return forward

    for name in NAMES:
        kind = getattr(torch.nn, name)
        monkeypatch.setattr(kind, "forward", spying(kind.forward))
    keep_in_float32(torch, lambda: torch.get_autocast_dtype("cuda") is torch.bfloat16)
    with StrictCuda():
        yield calls


@pytest.mark.parametrize("name", NAMES)
def test_it_computes_in_float32_without_autocast(seen: Seen, name: str):
    layer = getattr(torch.nn, name)(3, 4, batch_first=True).to("cuda")
    x = torch.randn(2, 5, 3).to("cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        output, states = layer(x.bfloat16())
        layer(x.bfloat16(), states)
    assert output.dtype == torch.float32
    assert seen == [(False, torch.float32)] * 2


def test_float16_with_its_scaler_and_float32_stay_as_they_are(seen: Seen):
    layer = torch.nn.LSTM(3, 4).to("cuda")
    x = torch.randn(5, 2, 3).to("cuda")
    layer(x)
    with torch.autocast("cuda", dtype=torch.float16):
        layer(x)
    assert seen == [(False, torch.float32), (True, torch.float32)]


def test_packed_sequences_and_pairs_of_states_are_converted():
    packed = pack_padded_sequence(torch.randn(2, 5, 3).bfloat16(), torch.tensor([5, 3]), batch_first=True)
    converted, (hidden, nothing) = to_float32(torch, (packed, (torch.ones(2).bfloat16(), None)))
    assert converted.data.dtype == hidden.dtype == torch.float32
    assert torch.equal(converted.batch_sizes, packed.batch_sizes)
    assert nothing is None
