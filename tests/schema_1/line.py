"""A user's pipeline as the documentation of 0.1.0 shows one."""

import numpy as np
import torch

from sweeper.core.config import TrialConfig
from sweeper.trainer.pipeline import Pipeline, Prepared, Samples


def prepare(data):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(1024, 4)).astype("float32")
    y = (x.sum(1, keepdims=True) + draw.normal(size=(1024, 1))).astype("float32")
    return Prepared(arrays={"x": x, "y": y}, synthetic=True, notes=("1,024 rows",))


def build(config: TrialConfig, prepared: Prepared) -> Pipeline:
    tensors = {name: torch.from_numpy(prepared.arrays[name]) for name in ("x", "y")}
    samples = Samples(tensors=tensors, length=len(tensors["x"]))
    return Pipeline(
        model=torch.nn.Linear(4, 1),
        train=samples,
        val=samples,
        loss=lambda model, batch: torch.nn.functional.mse_loss(model(batch["x"]), batch["y"]),
        evaluate=lambda model, batches: {"size": float(sum(len(batch["x"]) for batch in batches))},
    )
