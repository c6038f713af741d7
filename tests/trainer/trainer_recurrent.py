"""A recurrent pipeline whose layers drop units out, as cuDNN does with a state of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from sweeper.core.config import TrialConfig
from sweeper.trainer.pipeline import Pipeline, Prepared, Samples

ROWS, STEPS, FEATURES = 130, 3, 4


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(FEATURES, 8, num_layers=2, dropout=0.3, batch_first=True)
        self.head = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x)[0][:, -1]).squeeze(-1)


def prepare(data: Mapping[str, Any]) -> Prepared:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, STEPS, FEATURES)).astype(np.float32)
    return Prepared(arrays={"x": x, "y": x.mean(axis=(1, 2))})


def build(config: TrialConfig, prepared: Prepared) -> Pipeline:
    samples = Samples(
        tensors={name: torch.from_numpy(prepared.arrays[name]) for name in ("x", "y")}, length=ROWS
    )
    return Pipeline(
        model=Recurrent(),
        train=samples,
        val=samples,
        loss=lambda model, batch: nn.functional.mse_loss(model(batch["x"]), batch["y"]),
    )
