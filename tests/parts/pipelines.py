"""A small regression problem for the CPU, whose model can be made slow, odd or faulty.

model.hidden        0: a linear model; more: one hidden layer of that width
model.kind          `dense`, or `lstm`: a recurrent layer alone
model.dropout       share of hidden units left out in training
model.fault         a name of `parts.faults`, `nan` (the loss) or `inf` (every gradient)
model.fault_at      the training step at which it happens, counted from 0; `nan` and `inf` then persist
model.first_seconds how much longer the first training step takes
data.rows           training samples (2000)
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from parts.faults import FAULTS
from sweeper.core.config import TrialConfig
from sweeper.trainer.pipeline import Batch, Pipeline, Prepared, Samples

FEATURES = 8
NUM_VAL = 500
NOISE = 0.1


def prepare(data: Mapping[str, Any]) -> Prepared:
    """Draws a linear problem with noise; the same one for the same number of rows."""
    rows = int(data.get("rows", 2000))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows + NUM_VAL, FEATURES)).astype(np.float32)
    y = x @ rng.standard_normal(FEATURES).astype(np.float32)
    y += NOISE * rng.standard_normal(len(y)).astype(np.float32)
    return Prepared(arrays={"x": x, "y": y}, meta={"rows": rows}, synthetic=True)


class _Lstm(nn.LSTM):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        out: Tensor = super().forward(x.unsqueeze(1))[0]
        return out[:, -1, :1]


def _model(options: Mapping[str, Any]) -> nn.Module:
    if options.get("kind", "dense") == "lstm":
        return _Lstm(FEATURES, 4, batch_first=True)
    hidden = int(options.get("hidden", 0))
    if not hidden:
        return nn.Linear(FEATURES, 1)
    dropout = nn.Dropout(float(options.get("dropout", 0.0)))
    return nn.Sequential(nn.Linear(FEATURES, hidden), nn.ReLU(), dropout, nn.Linear(hidden, 1))


def mean_absolute_error(model: nn.Module, batches: Iterable[Batch]) -> Mapping[str, float]:
    """Returns `mae` over all samples."""
    errors = [(model(batch["x"]).squeeze(-1) - batch["y"]).abs() for batch in batches]
    return {"mae": float(torch.cat(errors).mean())}


def build(config: TrialConfig, prepared: Prepared) -> Pipeline:
    """Returns the model that `config.model` describes, on the prepared rows."""
    options = config.model
    rows = int(prepared.meta["rows"])
    x, y = torch.from_numpy(prepared.arrays["x"]), torch.from_numpy(prepared.arrays["y"])
    fault, fault_at = str(options.get("fault", "")), int(options.get("fault_at") or 0)
    steps = 0

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        nonlocal steps
        value = nn.functional.mse_loss(model(batch["x"]).squeeze(-1).float(), batch["y"])
        if not torch.is_grad_enabled():
            return value
        if steps == 0:
            time.sleep(float(options.get("first_seconds") or 0.0))
        if steps >= fault_at and fault == "nan":
            value = value * float("nan")
        elif steps >= fault_at and fault == "inf":
            # An infinite gradient behind a finite loss is what a scaler looks for.
            value.register_hook(lambda gradient: gradient * float("inf"))
        elif steps == fault_at:
            FAULTS[fault]()
        steps += 1
        return value

    return Pipeline(
        model=_model(options),
        train=Samples(tensors={"x": x[:rows], "y": y[:rows]}, length=rows),
        val=Samples(tensors={"x": x[rows:], "y": y[rows:]}, length=NUM_VAL),
        loss=loss,
        constant_loss=float(y[rows:].var(correction=0)),
        best_loss=NOISE**2,
        evaluate=mean_absolute_error,
    )
