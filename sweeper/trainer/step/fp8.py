"""Runs linear layers in float8 with torchao, which scales each tensor to the format's range."""

from __future__ import annotations

import importlib.util

from torch import nn

MIN_CAPABILITY = (8, 9)
"""Lowest compute capability whose tensor cores have float8 (Ada, then Hopper)."""

MULTIPLE = 16
"""Number of which both sizes of a layer must be multiples, for the tensor cores."""


def lacks_fp8(capability: str) -> str:
    """Returns why float8 cannot be used here; empty if it can.

    Args:
        capability: The GPU's compute capability, such as `8.9`; empty without a GPU.
    """
    if not capability:
        return "float8 needs an NVIDIA GPU"
    if tuple(map(int, capability.split("."))) < MIN_CAPABILITY:
        return f"float8 needs compute capability 8.9, but this GPU has {capability}"
    if importlib.util.find_spec("torchao") is None:
        return "torchao is not installed (`pip install 'sweeper-torch[fp8]'`)"
    return ""


def use_fp8(model: nn.Module, *, emulated: bool = False) -> int:
    """Makes a model's linear layers multiply in float8, and returns how many do.

    Layers whose sizes are not multiples of `MULTIPLE` do not. The weights keep their type.

    Args:
        emulated: Whether to emulate the rounding of float8 in another type, on any device.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    # If the model itself is a linear layer, torchao returns a new one instead of changing it.
    names = {
        name
        for name, layer in model.named_modules()
        if name
        and type(layer) is nn.Linear
        and not layer.in_features % MULTIPLE
        and not layer.out_features % MULTIPLE
    }
    convert_to_float8_training(
        model,
        # The gradient's product is over the rows of a batch, which may be any number.
        config=Float8LinearConfig(emulate=emulated, pad_inner_dim=True),
        module_filter_fn=lambda _, name: name in names,
    )
    return len(names)
