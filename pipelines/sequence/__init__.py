"""Forecasts the next rows of a table with a time column from a window of its past rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from sweeper import Pipeline, Prepared, TrialConfig, UserError
from sweeper.trainer.pipeline import Batch

from .._options import choice, options, trial_data
from .models import HEADS, Forecaster
from .split import PARTS, split_rows
from .windows import constant_loss, window_ends, windows

if TYPE_CHECKING:
    import pandas as pd

DATA = {
    "source": "synthetic",
    "path": "",
    "time": "",
    "target": "all",
    "seq_length": 30,
    "horizon": 24,
    "split": "0.7/0.15/0.15",
    "evaluate_on": "val",
    "max_fill": 6,
    "rows": 87_600,
    "columns": 8,
    "seed": 0,
}
MODEL = {"kind": "lstm", "hidden_size": 64, "num_layers": 2, "dropout": 0.2}
CHOICES = {"kind": ("lstm", "bilstm_attention")}
"""What each word among them may be."""
SPACE = {
    "data.seq_length": (30, 60, 90),
    "model.hidden_size": (64, 128, 256),
    "model.num_layers": (2, 3),
}


def prepare(data: Mapping[str, Any]) -> Prepared:
    """Returns the table's rows in the order of time, standardised with training statistics.

    Args:
        data: `path` (a .csv or .parquet file), `time` (its time column, by default found by its
            name), `target` (a column, or `all`), `horizon` (rows ahead; each of them is forecast),
            `split` (training, validation and test part, as shares of the rows or as months of 30
            days such as `12/4/4`), `evaluate_on` (`val`, or `test` to see at the very end what
            was never chosen by), `max_fill` (missing values in a row that the last one known stands
            for); without a path `rows`, `columns` and `seed` of made-up series.

    Returns:
        `series` [rows, columns] float32, `age` [rows] int64 (rows before it without a gap), and
        `target` [rows, 1] where a single column is forecast.

    Raises:
        UserError: An option or the file cannot be used.
    """
    # Imported here because they need pandas, and a trial only calls build.
    from .made_up import forecast_variance, make_series
    from .table import on_grid, read_columns

    opt = options("data", data, DATA, {"seq_length": 1, "horizon": 1, "columns": 1, "rows": 100})
    choice("data.evaluate_on", opt["evaluate_on"], PARTS[1:])
    notes: list[str] = []
    if opt["path"]:
        frame = read_columns(Path(opt["path"]), opt["time"], notes)
    else:
        choice("data.source", opt["source"], ("synthetic",))
        frame, unit = make_series(opt["rows"], opt["columns"], opt["seed"])
        notes.append(
            f"The series are made up: {opt['rows']} hours of {opt['columns']} columns with known seasons and "
            "noise; `data.path` names a table of your own."
        )
    frame = _without_empty(frame, opt["target"], notes)
    frame, age = on_grid(frame, opt["max_fill"], notes)
    parts = split_rows(opt["split"], frame.index, notes)
    known = frame.iloc[slice(*parts["train"])]
    flat = [str(name) for name in frame if known[name].max() == known[name].min()]
    frame = _without(frame, flat, "the same in every training row", opt["target"], notes)
    mean, sd = known[frame.columns].mean().to_numpy(), known[frame.columns].std(ddof=0).to_numpy()
    series = ((frame.to_numpy() - mean) / sd).astype(np.float32, order="C")
    meta: dict[str, Any] = {"data": opt, "columns": list(frame.columns), "parts": parts, "sd": sd.tolist()}
    arrays = {"series": series, "age": age}
    if opt["target"] != "all":
        arrays["target"] = series[:, _targets(meta)].copy()
    if not opt["path"]:
        variance = forecast_variance(opt["horizon"], opt["columns"]).mean() * np.square(unit / sd)
        meta["best_loss"] = float(variance[_targets(meta)].mean())
    if opt["evaluate_on"] == "test":
        notes.append("The validation figures are those of the test part; no choice may rest on them.")
    for part in parts:
        window_ends(age, meta, part, opt["seq_length"])
    return Prepared(arrays=arrays, meta=meta, synthetic=not opt["path"], notes=notes)


def _without_empty(frame: pd.DataFrame, target: str, notes: list[str]) -> pd.DataFrame:
    """Checks the target, and leaves out columns that are missing in more than half of the rows."""
    if target != "all" and target not in frame:
        known = ", ".join(frame.columns)
        raise UserError(f"`data.target` must be `all` or a numeric column ({known}), but got {target!r}.")
    empty = [str(name) for name in frame if frame[name].isna().mean() > 0.5]
    return _without(frame, empty, "missing in more than half of the rows", target, notes)


def _without(frame: pd.DataFrame, names: list[str], why: str, target: str, notes: list[str]) -> pd.DataFrame:
    if target in names:
        raise UserError(f"`data.target` must be a column to learn from, but {target!r} is {why}.")
    if len(names) == frame.shape[1]:
        raise UserError(f"`data` needs a column to learn from, but each one is {why}.")
    notes += [f"Column {name!r} skipped: {why}." for name in names]
    return frame.drop(columns=names)


def build(config: TrialConfig, prepared: Prepared) -> Pipeline:
    """Returns the forecaster and its windows of `data.seq_length` rows.

    `model` may hold kind (lstm or bilstm_attention), hidden_size, num_layers and dropout. The loss
    is the mean squared error over all rows and columns forecast, in units of the training variance.

    Raises:
        UserError: An option is unknown, or no window of that length fits.
    """
    meta = prepared.meta
    made_with = meta["data"]
    data = trial_data(config.data, made_with, "seq_length", {"seq_length": 1})
    model = options("model", config.model, MODEL, {"hidden_size": 1, "num_layers": 1})
    choice("model.kind", model["kind"], CHOICES["kind"])
    if model["dropout"] >= 1:
        raise UserError(f"`model.dropout < 1` must hold, but got {model['dropout']!r}.")
    if model["kind"] == "bilstm_attention" and 2 * model["hidden_size"] % HEADS:
        raise UserError(f"`model.hidden_size` must be even ({HEADS} heads), but got {model['hidden_size']}.")
    targets, seq_length = _targets(meta), data["seq_length"]
    train, val = (windows(prepared, part, seq_length) for part in ("train", made_with["evaluate_on"]))
    single = meta["sd"][targets][0] if made_with["target"] != "all" else None
    return Pipeline(
        model=Forecaster(len(meta["columns"]), targets, made_with["horizon"], seq_length, **model),
        train=train,
        val=val,
        loss=mse,
        evaluate=partial(evaluate, targets=targets, unit=single),
        constant_loss=constant_loss(val, made_with["horizon"]),  # the training mean is 0
        best_loss=meta.get("best_loss"),
    )


def _targets(meta: Mapping[str, Any]) -> slice:
    """Returns which columns are forecast."""
    if meta["data"]["target"] == "all":
        return slice(0, len(meta["columns"]))
    at = meta["columns"].index(meta["data"]["target"])
    return slice(at, at + 1)


def mse(model: nn.Module, batch: Batch) -> Tensor:
    """Returns the mean squared error, in units of each column's training variance."""
    return nn.functional.mse_loss(model(batch["x"]).float(), batch["y"])


def evaluate(
    model: nn.Module, batches: Iterable[Batch], *, targets: slice, unit: float | None
) -> Mapping[str, float]:
    """Returns how far the forecast is off, beside one that repeats the last value.

    Args:
        targets: The columns that are forecast.
        unit: Training standard deviation of the column, where it is a single one.

    Returns:
        `mse_over_last_value` (below 1 is better than repeating it), and for a single column its
        `rmse` in its own unit.
    """
    squares: list[Tensor] = []
    count = 0
    for batch in batches:
        y = batch["y"].double()
        off = torch.stack((model(batch["x"]) - y, batch["x"][:, -1:, targets] - y))
        squares.append(off.square().sum(dim=(1, 2, 3)))
        count += y.numel()
    error, naive = torch.stack(squares).sum(dim=0).tolist()
    found = {"mse_over_last_value": error / naive}
    return found if unit is None else {**found, "rmse": unit * (error / count) ** 0.5}
