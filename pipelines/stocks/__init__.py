"""Predicts a stock's next days from a window of its past: LSTM, GRU or Transformer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sweeper import Pipeline, Prepared, Samples, TrialConfig, UserError
from sweeper.trainer.pipeline import Batch, take_windows

from .._options import choice, options, trial_data
from .models import HEADS, StockModel

DATA = {
    "source": "synthetic",
    "path": "",
    "limit": 0,
    "min_rows": 500,
    "features": "auto",
    "target": "volatility",
    "evaluate_on": "val",
    "seq_length": 60,
    "stocks": 40,
    "days": 2500,
    "seed": 0,
}
MODEL = {"kind": "lstm", "hidden_size": 64, "num_layers": 2, "dropout": 0.2, "embedding_dim": 16}
CHOICES = {"kind": ("lstm", "gru", "transformer")}
"""What each word among them may be."""
SPACE = {
    "data.seq_length": (30, 60, 90),
    "model.kind": ("lstm", "gru", "transformer"),
    "model.hidden_size": (64, 128, 256),
    "model.num_layers": (2, 3),
}
CLIP = 8.0
"""Standardised features end here, so that one odd day cannot rule a window."""


def prepare(data: Mapping[str, Any]) -> Prepared:
    """Returns every instrument's days end to end, standardised with training statistics.

    Args:
        data: `path` (a CSV or parquet file of bars, or a folder of them), `limit` (the first N instruments
            by symbol, 0 for all), `min_rows`, `features` (bars, indicators, columns or auto), `target`
            (volatility or return), `evaluate_on` (`val`, or `test` to see at the very end what was never
            chosen by); without a path `stocks`, `days` and `seed` of a made-up market.

    Returns:
        For `train` and `val`: `_features` [days, features], `_target` [days] (NaN where a day has
        none), `_stock` [days] (id of the day's instrument) and `_age` [days] (days before it in the
        same instrument and part). A made-up market adds `_expected` [days], the prediction of one
        who knows its hidden state. The last 15 % of each instrument's days are held back; `evaluate_on:
        test` puts them into the place of `val`.

    Raises:
        UserError: An option or a file cannot be used, or no instrument has enough rows.
    """
    # Imported here because they need pandas, and a trial only calls build.
    from .bars import read_instruments
    from .features import HORIZON, split_instrument
    from .market import make_market
    from .returns import WARM_UP

    opt = options("data", data, DATA)
    target = choice("data.target", opt["target"], tuple(HORIZON))
    kind = choice("data.features", opt["features"], ("auto", "bars", "indicators", "columns"))
    choice("data.evaluate_on", opt["evaluate_on"], ("val", "test"))
    notes: list[str] = []
    if opt["path"]:
        instruments = read_instruments(Path(opt["path"]), kind, opt["limit"], notes)
    else:
        choice("data.source", opt["source"], ("synthetic",))
        instruments = make_market(opt["stocks"], opt["days"], opt["seed"], target)
        notes.append(
            f"The market is made up: {opt['stocks']} stocks of {opt['days']} days whose hidden volatility "
            "persists; nothing here is a real price. `data.path` names real bars."
        )

    needed = max(opt["min_rows"], WARM_UP + math.ceil((opt["seq_length"] + HORIZON[target]) / 0.15))
    pieces: dict[str, list[np.ndarray]] = {}
    masked: dict[str, int] = {}
    for symbol, frame in instruments:
        if len(frame) < needed:
            notes.append(f"{symbol} skipped: {len(frame)} rows, {needed} are needed")
            continue
        parts, num_masked = split_instrument(frame, target, kind, opt["evaluate_on"])
        if not parts:
            notes.append(f"{symbol} skipped: its close never moves")
            continue
        for part, arrays in parts.items():
            arrays["stock"] = np.full(len(arrays["age"]), len(masked))
            for name, array in arrays.items():
                pieces.setdefault(f"{part}_{name}", []).append(array)
        masked[symbol] = num_masked
    if not masked:
        raise UserError(
            f"`data` needs an instrument with at least {needed} rows, but found none. {'; '.join(notes[:3])}"
        )
    if any(masked.values()):
        each = ", ".join(f"{symbol} {count}" for symbol, count in masked.items() if count)
        notes.append(
            f"{sum(masked.values())} one-day moves beyond 10 robust sigmas were masked as corporate actions "
            f"({each}); days whose target would look across one are left out."
        )
    if opt["evaluate_on"] == "test":
        notes.append("The validation figures are those of the test part; no choice may rest on them.")
    return Prepared(
        arrays=_standardise({name: np.concatenate(array) for name, array in pieces.items()}),
        meta={"symbols": list(masked), "data": opt},
        synthetic=not opt["path"],
        notes=notes,
    )


def _standardise(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Scales features and targets by the mean and sd over all training days, as float32 and int64."""
    scaled = {}
    for kind, known in (("features", arrays["train_features"]), ("target", arrays["train_target"])):
        mean, sd = np.nanmean(known, axis=0), np.maximum(np.nanstd(known, axis=0), 1e-8)
        for name in arrays:
            if name.endswith(kind) or (kind == "target" and name.endswith("expected")):
                scaled[name] = ((arrays[name] - mean) / sd).astype(np.float32)
    for name in arrays:
        if name.endswith("features"):
            scaled[name] = np.ascontiguousarray(np.nan_to_num(scaled[name]).clip(-CLIP, CLIP))
    return scaled | {n: a.astype(np.int64) for n, a in arrays.items() if n.endswith(("stock", "age"))}


def build(config: TrialConfig, prepared: Prepared) -> Pipeline:
    """Returns the model and its windows of `data.seq_length` days.

    `model` may hold kind (lstm, gru or transformer), hidden_size, num_layers, dropout and
    embedding_dim. The loss is the mean squared error, in units of the target's training variance.

    Raises:
        UserError: An option is unknown, or no window of that length fits.
    """
    data = trial_data(config.data, prepared.meta["data"], "seq_length")
    seq_length = data["seq_length"]
    train, val = (_windows(prepared.arrays, part, seq_length) for part in ("train", "val"))
    val_target = _targets(val)
    expected = prepared.arrays.get("val_expected")
    model = options("model", config.model, MODEL, {"hidden_size": 2, "num_layers": 1, "embedding_dim": 1})
    choice("model.kind", model["kind"], CHOICES["kind"])
    if model["dropout"] >= 1:
        raise UserError(f"`model.dropout < 1` must hold, but got {model['dropout']!r}.")
    if model["kind"] == "transformer" and model["hidden_size"] % HEADS:
        raise UserError(
            f"`model.hidden_size` must be a multiple of {HEADS} (heads), but got {model['hidden_size']}."
        )
    num_features, num_stocks = train.tensors["features"].shape[1], len(prepared.meta["symbols"])
    return Pipeline(
        model=StockModel(num_features, num_stocks, seq_length, **model),
        train=train,
        val=val,
        loss=mse,
        evaluate=partial(evaluate, own_mean=_own_mean(train, num_stocks)),
        constant_loss=float((val_target - _targets(train).mean()).square().mean()),
        best_loss=None
        if expected is None
        else float((val_target - torch.from_numpy(np.asarray(expected))[val.tensors["end"]]).square().mean()),
    )


def _targets(samples: Samples) -> Tensor:
    return samples.tensors["target"][samples.tensors["end"]]


def mse(model: nn.Module, batch: Batch) -> Tensor:
    """Returns the mean squared error of the standardised target."""
    return nn.functional.mse_loss(model(batch["x"], batch["stock"]).float(), batch["target"])


def evaluate(model: nn.Module, batches: Iterable[Batch], *, own_mean: Tensor) -> Mapping[str, float]:
    """Returns `mse_over_own_mean`: the error beside that of each stock's training mean [stocks].

    Below 1 something of the days ahead is known; much below the constant loss is also who has only
    told a currency from an oil fund.
    """
    squares = []
    for batch in batches:
        stock, target = batch["stock"], batch["target"].double()
        known = own_mean.to(stock.device)[stock]
        off = torch.stack((model(batch["x"], stock) - target, known - target))
        squares.append(off.square().sum(dim=1))
    error, own = torch.stack(squares).sum(dim=0).tolist()
    return {"mse_over_own_mean": error / own}


def _own_mean(samples: Samples, num_stocks: int) -> Tensor:
    stock, target = samples.tensors["stock"][samples.tensors["end"]], _targets(samples)
    total = torch.bincount(stock, weights=target.double(), minlength=num_stocks)
    return (total / torch.bincount(stock, minlength=num_stocks)).float()


def _windows(arrays: Mapping[str, np.ndarray], part: str, seq_length: int) -> Samples:
    """Returns the windows of `part`: days once in memory, a sample is the day a window ends on."""
    own = {name: np.ascontiguousarray(arrays[f"{part}_{name}"]) for name in ("features", "stock", "target")}
    age = np.asarray(arrays[f"{part}_age"])
    own["end"] = np.flatnonzero(np.isfinite(own["target"]) & (age >= seq_length - 1))
    if seq_length < 1 or not len(own["end"]):
        raise UserError(
            f"`data.seq_length` must be 1 to {age.max() + 1} (the longest {part} part), but got {seq_length}."
        )
    return Samples(
        tensors={name: torch.from_numpy(array) for name, array in own.items()},
        length=len(own["end"]),
        gather=partial(gather, seq_length=seq_length),
        row=partial(row, own, seq_length=seq_length),
    )


def gather(tensors: Mapping[str, Tensor], index: Tensor, *, seq_length: int) -> Batch:
    """Returns the samples `index` [batch]: x [batch, seq_length, features], stock and target [batch]."""
    end = tensors["end"].index_select(0, index)
    return {
        "x": take_windows(tensors["features"], end - (seq_length - 1), seq_length),
        "stock": tensors["stock"].index_select(0, end),
        "target": tensors["target"].index_select(0, end),
    }


def row(arrays: Mapping[str, np.ndarray], i: int, *, seq_length: int) -> dict[str, Tensor]:
    """Returns sample `i` as a `__getitem__` written by hand does: three small tensors of its own."""
    end = arrays["end"][i]
    return {
        "x": torch.FloatTensor(arrays["features"][end - seq_length + 1 : end + 1]),
        "stock": torch.tensor(arrays["stock"][end]),
        "target": torch.tensor(arrays["target"][end]),
    }
