"""A pipeline whose own rows, and whose loss, draw from every generator there is."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sweeper.core.config import TrialConfig
from sweeper.trainer.pipeline import Batch, Pipeline, Prepared, Samples

ROWS, NUM_VAL = 230, 50


def prepare(data: Mapping[str, Any]) -> Prepared:
    x = np.random.default_rng(0).standard_normal((ROWS + NUM_VAL, 4)).astype(np.float32)
    return Prepared(arrays={"x": x, "y": np.tanh(x).sum(1)}, synthetic=True)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    noise = 0.01 * (torch.rand(()) + np.random.random() + random.random())
    return nn.functional.mse_loss(model(batch["x"]).squeeze(-1), batch["y"]) * (1 + noise)


def build(config: TrialConfig, prepared: Prepared) -> Pipeline:
    tensors = {name: torch.from_numpy(array) for name, array in prepared.arrays.items()}
    train = {name: tensor[:ROWS] for name, tensor in tensors.items()}

    def row(i: int) -> dict[str, Tensor]:
        noise = torch.rand(4) + float(np.random.random()) + random.random()
        return {"x": train["x"][i] + 0.1 * noise, "y": train["y"][i]}

    return Pipeline(
        model=nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)),
        train=Samples(tensors=train, length=ROWS, row=row),
        val=Samples(tensors={name: tensor[ROWS:] for name, tensor in tensors.items()}, length=NUM_VAL),
        loss=loss,
    )
