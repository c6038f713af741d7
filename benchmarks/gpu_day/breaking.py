"""A pipeline that breaks: an MLP whose loss runs out of memory inside the capture of its graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sweeper.core.config import TrialConfig
from sweeper.trainer.pipeline import Batch, Pipeline, Prepared, Samples

ROWS, FEATURES = 4096, 16


def prepare(data: Mapping[str, Any]) -> Prepared:
    """Draws noise: nothing is to be learnt."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, FEATURES)).astype(np.float32)
    return Prepared(arrays={"x": x, "y": x[:, 0].copy()}, synthetic=True)


def build(config: TrialConfig, prepared: Prepared) -> Pipeline:
    """Returns the training that runs out of memory."""
    tensors = {name: torch.from_numpy(np.asarray(array)) for name, array in prepared.arrays.items()}
    samples = Samples(tensors=tensors, length=ROWS)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        error = nn.functional.mse_loss(model(batch["x"]).squeeze(-1).float(), batch["y"])
        if torch.cuda.is_current_stream_capturing():
            total = torch.cuda.get_device_properties(error.device).total_memory
            error = error + torch.empty(2 * total, dtype=torch.uint8, device=error.device).sum()
        return error

    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1))
    return Pipeline(model=model, train=samples, val=samples, loss=loss)
