"""An MLP that predicts one number from a row of numbers: the smallest example of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sweeper import Pipeline, Prepared, Samples, TrialConfig, UserError
from sweeper.trainer.pipeline import Batch

from ._options import choice, options

DATA = {"source": "synthetic", "path": "", "target": "", "rows": 200_000, "features": 30, "seed": 0}
MODEL = {"hidden_size": 128, "num_layers": 2}
SPACE = {"model.hidden_size": (64, 128, 256)}
"""What is worth searching among these, for `sweeper init tabular`."""
NOISE = 0.8
"""Noise of the made-up target, in units of its signal: what no model can explain."""


def prepare(data: Mapping[str, Any]) -> Prepared:
    """Returns rows of numbers, split 90/10 at random and standardised with training statistics.

    Args:
        data: `path` (a .csv or .parquet file, or a folder of them) and `target` (a column, by
            default the last); without a path `rows`, `features` and `seed` of made-up data.

    Returns:
        `train_x` and `val_x` [rows, features], `train_y` and `val_y` [rows], all float32.
    """
    opt = options("data", data, DATA, {"features": 1})
    if opt["path"]:
        from ._tables import read_rows  # needs pandas, and a trial only calls build

        x, y, notes = read_rows(Path(opt["path"]), opt["target"])
    else:
        choice("data.source", opt["source"], ("synthetic",))
        x, y = make_rows(opt["rows"], opt["features"], opt["seed"])
        notes = [
            f"The data is made up: {len(y)} rows of a known function with noise; `data.path` names real data."
        ]
    if len(y) < 20:
        raise UserError(f"`data` needs at least 20 rows with a target, but got {len(y)}.")

    order = np.random.default_rng(opt["seed"]).permutation(len(y))
    train, val = np.split(order, [int(0.9 * len(y))])
    if missing := int(np.isnan(x).sum()):
        notes.append(f"{missing} missing values were replaced by their column's training mean.")
    known = np.ma.masked_invalid(x[train])
    mean, sd = known.mean(axis=0).filled(0.0), known.std(axis=0).filled(0.0)
    x = np.nan_to_num((x - mean) / np.where(sd > 1e-9 * np.abs(mean), sd, 1.0))
    y_mean, y_sd = y[train].mean(), max(y[train].std(), 1e-8)
    y = (y - y_mean) / y_sd

    arrays = {"train_x": x[train], "train_y": y[train], "val_x": x[val], "val_y": y[val]}
    return Prepared(
        arrays={name: array.astype(np.float32) for name, array in arrays.items()},
        meta={} if opt["path"] else {"best_loss": float(NOISE**2 / y_sd**2)},
        synthetic=not opt["path"],
        notes=notes,
    )


def build(config: TrialConfig, prepared: Prepared) -> Pipeline:
    """Returns an MLP of `model.num_layers` hidden layers of `model.hidden_size`, with MSE."""
    opt = options("model", config.model, MODEL, {"hidden_size": 1})
    train, val = samples(prepared, "train"), samples(prepared, "val")
    layers: list[nn.Module] = []
    width = train.tensors["x"].shape[1]
    for _ in range(opt["num_layers"]):
        layers += [nn.Linear(width, opt["hidden_size"]), nn.ReLU()]
        width = opt["hidden_size"]
    return Pipeline(
        model=nn.Sequential(*layers, nn.Linear(width, 1)),
        train=train,
        val=val,
        loss=mse,
        constant_loss=float(val.tensors["y"].square().mean()),  # the training mean is 0
        best_loss=prepared.meta.get("best_loss"),
    )


def samples(prepared: Prepared, part: str) -> Samples:
    """Returns the rows of `part` (`train` or `val`): `x` [rows, features] and `y` [rows]."""
    x, y = (np.asarray(prepared.arrays[f"{part}_{name}"]) for name in "xy")
    return Samples(
        tensors={"x": torch.from_numpy(x), "y": torch.from_numpy(y)},
        length=len(y),
        row=lambda i: {"x": x[i], "y": y[i]},
    )


def mse(model: nn.Module, batch: Batch) -> Tensor:
    """Returns the mean squared error, in units of the target's training variance."""
    return nn.functional.mse_loss(model(batch["x"]).squeeze(-1), batch["y"])


def make_rows(rows: int, features: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns x [rows, features] and y [rows] = f(x) + noise, with f smooth and of variance 1."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, features))
    hidden = np.tanh(0.7 * x @ rng.standard_normal((features, 3)) / np.sqrt(features))
    signal = hidden.sum(axis=1)
    return x, signal / signal.std() + NOISE * rng.standard_normal(rows)
