"""Trainings whose bottleneck on a GPU is known; `model.kind` says which.

launch      many narrow layers on a small batch
compute     wide layers on a large batch, in bf16
bandwidth   element-wise work on wide activations: little arithmetic for each byte
sync        the host reads the loss several times a step
input       a processor decodes each row

`model.scale` divides the widths, so that a CPU can run them, too; the bottleneck is then another.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sweeper.core.config import TrialConfig
from sweeper.core.measurement import Bottleneck
from sweeper.trainer.pipeline import Batch, Pipeline, Prepared, Samples

FEATURES, ROWS = 64, 50_000
DEPTH, READS = 24, 8
ROW_SECONDS = 1e-4
WIDTH = {"launch": 64, "compute": 8192, "bandwidth": 65_536, "sync": 64, "input": 128}

KINDS: Mapping[str, tuple[Bottleneck, Mapping[str, Any]]] = {
    "launch": (Bottleneck.LAUNCH, {"batch_size": 64}),
    "compute": (Bottleneck.COMPUTE, {"batch_size": 8192, "precision.amp": "bf16"}),
    "bandwidth": (Bottleneck.BANDWIDTH, {"batch_size": 2048}),
    "sync": (Bottleneck.SYNC, {"batch_size": 1024}),
    "input": (Bottleneck.INPUT, {"batch_size": 64, "loader.kind": "rows"}),
}
"""By kind: the verdict that is right, and the configuration."""


def prepare(data: Mapping[str, Any]) -> Prepared:
    """Draws noise: nothing is to be learnt."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, FEATURES)).astype(np.float32)
    return Prepared(arrays={"x": x, "y": x[:, 0].copy()}, synthetic=True)


class Widened(nn.Module):
    """Spreads a row's numbers over `width` activations, and passes over those again and again."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.ones(width))
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        """Returns one number [batch, 1] for each row [batch, FEATURES]."""
        wide = x.repeat(1, self.width // x.shape[1])
        for _ in range(4):
            wide = torch.tanh(wide * self.weights)
        return wide.mean(dim=1, keepdim=True)


def build(config: TrialConfig, prepared: Prepared) -> Pipeline:
    """Returns the training that `model.kind` names."""
    kind = str(config.model["kind"])
    width = max(FEATURES, WIDTH[kind] // int(config.model.get("scale") or 1))
    tensors = {name: torch.from_numpy(np.asarray(array)) for name, array in prepared.arrays.items()}

    def decode(i: int) -> Mapping[str, Tensor]:
        end = time.perf_counter() + ROW_SECONDS
        while time.perf_counter() < end:
            pass
        return {name: tensor[i] for name, tensor in tensors.items()}

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        found = nn.functional.mse_loss(model(batch["x"]).squeeze(-1).float(), batch["y"])
        if kind == "sync" and torch.is_grad_enabled():
            for _ in range(READS):
                found = found + 0.0 * found.item()
        return found

    depth = DEPTH if kind == "launch" else 2
    hidden = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    plain = nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), *hidden, nn.Linear(width, 1))
    samples = Samples(tensors=tensors, length=ROWS, row=decode if kind == "input" else None)
    model = Widened(width) if kind == "bandwidth" else plain
    return Pipeline(model=model, train=samples, val=samples, loss=loss)
