"""Counts the arithmetic of a training step and measures how fast the device multiplies matrices."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from sweeper.trainer import device as devices
from sweeper.trainer.ceilings import matmul
from sweeper.trainer.clocks import NoClock
from sweeper.trainer.data.protocol import Loader
from sweeper.trainer.step import Stepper

SIDES = {"cpu": 1024, "cuda": 4096}
"""Size of the square matrices that are multiplied to measure a device's speed, by device type."""


def measured(stepper: Stepper, loader: Loader) -> dict[str, Any]:
    """Returns the operations per sample of a step, and those per second of a matrix product.

    The operations of a step are torch's count for matrix products, convolutions and attention; None if
    torch counts none. Recomputed activations count as well. The matrix product is in the step's precision,
    and in bf16 for float8.
    """
    handed = loader.next()
    batch = loader.materialise(loader.to_device(handed.batch), handed.length)
    with (
        _without_fused_cells(stepper.model),
        torch.compiler.set_stance("force_eager"),
        FlopCounterMode(display=False) as counter,
    ):
        stepper.train(batch, NoClock(), stepper.model)
    # Torch has no plain matrix product in float8, so float8 is compared with bf16.
    precision = {"fp8": "bf16"}.get(stepper.config.precision.amp, stepper.config.precision.amp)
    device = stepper.device
    reached = matmul(precision, SIDES[device.type], str(device), lambda: devices.synchronize(device))
    return {"flops_per_sample": counter.get_total_flops() / handed.size or None, "matmul_flops": reached}


@contextlib.contextmanager
def _without_fused_cells(model: nn.Module) -> Iterator[None]:
    """Makes recurrent layers compute one product at a time: torch cannot count inside a fused kernel."""
    if not any(isinstance(each, nn.RNNBase) for each in model.modules()):
        yield
        return
    before = torch.backends.cudnn.enabled, torch.backends.mkldnn.enabled
    torch.backends.cudnn.enabled = torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.cudnn.enabled, torch.backends.mkldnn.enabled = before
