"""A pipeline for benchmarks: an LSTM of 128 on windows of 30 days of a synthetic series."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sweeper.core.config import TrialConfig
from sweeper.trainer.pipeline import Batch, Pipeline, Prepared, Samples, take_windows

DAYS, FEATURES, WINDOW = 50_000, 8, 30


def prepare(data: Mapping[str, Any]) -> Prepared:
    """Returns one long series of numbers, and a target for each day."""
    rng = np.random.default_rng(0)
    series = rng.standard_normal((DAYS, FEATURES)).astype(np.float32)
    return Prepared(arrays={"series": series, "target": series.sum(axis=1)}, synthetic=True)


class Lstm(nn.Module):
    """A window of FEATURES numbers a day through an LSTM of 128 to one number."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(FEATURES, 128, batch_first=True)
        self.head = nn.Linear(128, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Returns predictions [batch] from windows [batch, days, features]."""
        last: Tensor = self.head(self.recurrent(x)[0][:, -1]).squeeze(-1)
        return last


def build(config: TrialConfig, prepared: Prepared) -> Pipeline:
    """Returns the LSTM on windows which are never materialised."""
    tensors = {name: torch.from_numpy(np.asarray(array)) for name, array in prepared.arrays.items()}

    def gather(tensors: Mapping[str, Tensor], index: Tensor) -> Batch:
        return {
            "x": take_windows(tensors["series"], index, WINDOW),
            "y": tensors["target"].index_select(0, index + (WINDOW - 1)),
        }

    samples = Samples(tensors=tensors, length=DAYS - WINDOW + 1, gather=gather)
    return Pipeline(
        model=Lstm(),
        train=samples,
        val=samples,
        loss=lambda model, batch: nn.functional.mse_loss(model(batch["x"]).float(), batch["y"]),
    )
