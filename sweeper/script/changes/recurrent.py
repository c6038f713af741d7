"""Keeps recurrent layers out of bfloat16: under autocast, cuDNN computes them in float16 in any case.

float16 without a scaler loses small gradients. The wrapper of `_cudnn_rnn` in torch/csrc autocasts to Half,
whatever type autocast has (aten/src/ATen/cudnn/AutocastRNN.cpp).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

NAMES = ("RNN", "LSTM", "GRU")
NOTE = "recurrent layers compute in float32, since under autocast cuDNN would use float16"


def has_recurrent(torch: Any, model: Any) -> bool:
    """Returns whether a model has layers that cuDNN computes as recurrent ones."""
    return any(isinstance(layer, torch.nn.RNNBase) for layer in model.modules())


def keep_in_float32(torch: Any, is_on: Callable[[], bool]) -> None:
    """Makes recurrent layers on a GPU leave autocast where `is_on()`, and compute in float32."""
    for name in NAMES:
        kind = getattr(torch.nn, name)
        if not hasattr(kind.forward, "_sweeper_is_float32"):
            kind.forward = _leave_autocast(torch, kind.forward, is_on)


def _leave_autocast(torch: Any, original: Any, is_on: Callable[[], bool]) -> Any:
    @functools.wraps(original)
    def forward(layer: Any, *args: Any) -> Any:
        device = layer.weight_ih_l0.device.type
        if device != "cuda" or not is_on():
            return original(layer, *args)
        with torch.autocast(device, enabled=False):
            return original(layer, *(to_float32(torch, part) for part in args))

    forward._sweeper_is_float32 = True  # type: ignore[attr-defined]
    return forward


def to_float32(torch: Any, part: Any) -> Any:
    """Returns a tensor, a packed sequence or a tuple of states in float32."""
    if isinstance(part, tuple) and not hasattr(part, "float"):
        return tuple(to_float32(torch, state) for state in part)
    return part.float() if torch.is_tensor(part) or hasattr(part, "float") else part
