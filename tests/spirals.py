"""The distribution `acme-nets`: a pipeline of its own, with a module beside it."""

from __future__ import annotations

from pathlib import Path

from distributions import install

PIPELINE = '''\
"""Tells two arms of a spiral apart."""
import torch
from torch import nn

from sweeper.errors import UserError
from sweeper.trainer.pipeline import Pipeline, Prepared, Samples

from .arms import two_arms

SPACE = {"model.hidden_size": (16, 64)}

def prepare(data):
    if data.get("arms", 2) != 2:
        raise UserError(f"`data.arms` must be 2, but got {data['arms']}.")
    x, y = two_arms(2000)
    return Prepared(arrays={"x": x, "y": y}, synthetic=True)

def build(config, prepared):
    x, y = (torch.from_numpy(prepared.arrays[name][:]) for name in "xy")
    size = config.model.get("hidden_size", 64)
    model = nn.Sequential(nn.Linear(2, size), nn.Tanh(), nn.Linear(size, 1))
    train, val = (Samples(tensors={"x": x[part], "y": y[part]}, length=1000)
                  for part in (slice(0, None, 2), slice(1, None, 2)))
    return Pipeline(model=model, train=train, val=val, loss=lambda model, batch:
                    nn.functional.mse_loss(model(batch["x"]), batch["y"]))
'''
ARMS = """\
import numpy as np

def two_arms(count):
    angle = np.linspace(0, 9, count).repeat(2)[:count]
    side = np.where(np.arange(count) % 4 < 2, 1.0, -1.0)
    x = (side * angle * np.stack([np.sin(angle), np.cos(angle)])).T
    return x.astype("float32"), side[:, None].astype("float32")
"""


def install_spirals(folder: Path) -> Path:
    """Writes the distribution into `folder`, which is to be on the path, and returns it."""
    points = {"sweeper.pipelines": {"spirals": "acme_nets.spirals"}}
    files = {"acme_nets/__init__.py": "", "acme_nets/spirals.py": PIPELINE, "acme_nets/arms.py": ARMS}
    return install(folder, "acme-nets", points, files)
