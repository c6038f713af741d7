"""Separates two interleaved half circles with a small network: a complete pipeline."""

import numpy as np
import torch
from torch import nn

from sweeper import Pipeline, Prepared, Samples

MODEL = {"hidden_size": 64}
SPACE = {"model.hidden_size": (32, 64, 128)}


def prepare(data):
    """Runs once per machine. Every trial maps the arrays into memory."""
    count = int(data.get("samples", 40_000))
    random = np.random.default_rng(0)
    angle, side = random.uniform(0, np.pi, count), random.integers(0, 2, count)
    x = np.stack([np.cos(angle) * (1 - 2 * side) + side, np.sin(angle) * (1 - 2 * side) + side / 2], axis=1)
    x += random.normal(0, 0.1, x.shape)
    return Prepared(arrays={"x": x.astype("float32"), "y": side.astype("int64")}, synthetic=True)


def build(config, prepared):
    """Runs once per trial: samples, a model, a loss."""
    x, y = (torch.from_numpy(prepared.arrays[name][:]) for name in "xy")
    split = len(x) * 9 // 10
    size = int(config.model.get("hidden_size", MODEL["hidden_size"]))
    model = nn.Sequential(nn.Linear(2, size), nn.ReLU(), nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 2))
    return Pipeline(
        model=model,
        train=Samples(tensors={"x": x[:split], "y": y[:split]}, length=split),
        val=Samples(tensors={"x": x[split:], "y": y[split:]}, length=len(x) - split),
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch["x"]), batch["y"]),
    )
