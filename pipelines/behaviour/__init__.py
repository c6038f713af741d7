"""Tells from a window of PPG and motion what a person does: chewing, drinking, swallowing, talking."""

from __future__ import annotations

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
from .models import KINDS, make_model

DATA = {
    "source": "synthetic",
    "path": "",
    "pattern": "*.txt",
    "labels": "",
    "events": "events_config.json",
    "background": "",
    "rate": 100.0,
    "highpass": 0.0,
    "window": 500,
    "overlap": 0.5,
    "val_fraction": 0.2,
    "recordings": 60,
    "seconds": 250,
    "seed": 0,
}
MODEL = {
    "kind": "cnn",
    "hidden_size": 192,
    "num_layers": 4,
    "dropout": 0.2,
    "n_fft": 64,
    "loss": "focal",
    "gamma": 2.0,
}
CHOICES = {"kind": KINDS, "loss": ("focal", "cross_entropy")}
"""What each word among them may be."""
SPACE = {
    "model.kind": ("cnn", "transformer", "fusion"),
    "model.hidden_size": (48, 96, 192),
    "model.n_fft": (64, 128),
    "model.dropout": (0.0, 0.2, 0.4),
}


def prepare(data: Mapping[str, Any]) -> Prepared:
    """Returns recordings end to end, standardised with training statistics, and where windows begin.

    Args:
        data: `path` names one of
            - a folder of text recordings (`pattern`), or one with `*_data` folders of them. Every line
              is one sample of all channels (PPG 3, then IMU 3), at `rate` Hz. Their classes are in
              the JSON file `events` in that folder; without one, a recording's class is the name of
              the sub-folder it lies in, or one of the words `labels` (comma-separated; those of the
              guide by default) in its file name. Windows of `window` samples which overlap by
              the share `overlap` get the commonest class of their samples. Samples outside of all
              events are of the class `background`; without one, windows that are mostly such
              are left out. `highpass` takes away what is slower than so many Hz (0: nothing);
            - a folder with one folder of ready windows (.npy, [channels, time]) per class;
            - a .npz file with X [windows, channels, time], y [windows] and perhaps split (train or
              another word) or recording [windows].
            Without a path `recordings` of `seconds` are made up from `seed`. `val_fraction` of each
            class's recordings, drawn with `seed`, is held back.

    Returns:
        As `pipelines.behaviour.pieces.arrays` has it.

    Raises:
        UserError: An option or a file cannot be used, or there is nothing to train or validate on.
    """
    # Imported here because a trial only calls build.
    from .pieces import arrays, cut, split
    from .reading import read
    from .synthetic import make_recordings

    opt = options("data", data, DATA, {"window": 2, "recordings": 2, "seconds": 1})
    for name, low, high in (("overlap", 0.0, 0.99), ("val_fraction", 0.01, 0.99)):
        if not low <= opt[name] <= high:
            raise UserError(f"`{low} <= data.{name} <= {high}` must hold, but got {opt[name]!r}.")
    notes: list[str] = []
    if opt["path"]:
        pieces, window = read(Path(opt["path"]).expanduser(), opt, notes)
    else:
        choice("data.source", opt["source"], ("synthetic",))
        made = make_recordings(opt["recordings"], opt["seconds"], opt["seed"])
        pieces, window = [cut(name, x, spans, opt)[0] for name, x, spans in made], opt["window"]
        notes.append(
            f"The data is made up: {opt['recordings']} recordings of {opt['seconds']} s of six people who do "
            "not exist; nothing here was measured. `data.path` names real recordings."
        )
    kept, classes = arrays(split(pieces, opt["val_fraction"], opt["seed"], notes), notes)
    return Prepared(
        arrays=kept,
        meta={"classes": classes, "window": window, "data": opt},
        synthetic=not opt["path"],
        notes=notes,
    )


def build(config: TrialConfig, prepared: Prepared) -> Pipeline:
    """Returns the classifier of `model.kind` (cnn, transformer or fusion) and its windows.

    Its size is `model.hidden_size`, for every kind (see `make_model`); `num_layers` are the
    transformer's, `n_fft` is the CNN's.

    The loss is the focal loss (Lin et al. 2017) with `model.gamma`, or cross entropy, each sample
    weighted by `windows / (classes * windows of its class)` of the training part: all classes count
    the same, and as the weights are 1 in the mean, a predictor of equal odds has the loss it would
    have without them. Nothing is drawn more often on top of that.

    Raises:
        UserError: An option is unknown, or the windows are too short for the network.
    """
    trial_data(config.data, prepared.meta["data"])
    opt = options("model", config.model, MODEL, {"hidden_size": 1, "num_layers": 1, "n_fft": 8})
    choice("model.kind", opt["kind"], CHOICES["kind"])
    gamma = opt["gamma"] if choice("model.loss", opt["loss"], CHOICES["loss"]) == "focal" else 0.0
    if opt["dropout"] >= 1:
        raise UserError(f"`model.dropout < 1` must hold, but got {opt['dropout']!r}.")
    window, classes = prepared.meta["window"], len(prepared.meta["classes"])
    counts = np.bincount(prepared.arrays["train_label"], minlength=classes)
    weights = (counts.sum() / (classes * counts)).astype(np.float32)
    train, val = (_samples(prepared.arrays, part, window, weights) for part in ("train", "val"))
    # With these weights all classes are equally likely: in training no constant beats equal odds.
    equal = focal(torch.zeros(1, classes).log_softmax(1)[:, 0], gamma).item()
    return Pipeline(
        model=make_model(
            opt["kind"],
            train.tensors["series"].shape[1],
            window,
            classes,
            **{name: opt[name] for name in ("hidden_size", "num_layers", "dropout", "n_fft")},
        ),
        train=train,
        val=val,
        loss=partial(loss, gamma=gamma),
        constant_loss=equal * float(val.tensors["weight"].mean()),
        evaluate=partial(evaluate, classes=classes),
    )


def _samples(arrays: Mapping[str, np.ndarray], part: str, window: int, weights: np.ndarray) -> Samples:
    """Returns the windows of `part`: the series once in memory, a sample is where its window begins."""
    series, start, label = (
        np.ascontiguousarray(arrays[f"{part}_{name}"]) for name in ("series", "start", "label")
    )
    own = {"series": series, "start": start, "label": label, "weight": weights[label]}
    return Samples(
        tensors={name: torch.from_numpy(array) for name, array in own.items()},
        length=len(start),
        gather=partial(gather, window=window),
        row=partial(row, own, window=window),
    )


def gather(tensors: Mapping[str, Tensor], index: Tensor, *, window: int) -> Batch:
    """Returns the windows `index` [batch]: x [batch, window, channels], label and weight [batch]."""
    start = tensors["start"].index_select(0, index)
    return {
        "x": take_windows(tensors["series"], start, window),
        "label": tensors["label"].index_select(0, index),
        "weight": tensors["weight"].index_select(0, index),
    }


def row(arrays: Mapping[str, np.ndarray], i: int, *, window: int) -> dict[str, Tensor]:
    """Returns window `i` as a `__getitem__` written by hand does: tensors of its own."""
    start = arrays["start"][i]
    return {
        "x": torch.FloatTensor(arrays["series"][start : start + window]),
        "label": torch.tensor(arrays["label"][i]),
        "weight": torch.tensor(arrays["weight"][i]),
    }


def loss(model: nn.Module, batch: Batch, *, gamma: float) -> Tensor:
    """Returns the weighted focal loss, its mean over the batch; cross entropy where `gamma` is 0."""
    log_p = model(batch["x"]).float().log_softmax(1).gather(1, batch["label"][:, None])[:, 0]
    return (batch["weight"] * focal(log_p, gamma)).mean()


def focal(log_p: Tensor, gamma: float) -> Tensor:
    """Returns -(1 - p)^gamma log p of the true classes' `log p` (Lin et al. 2017)."""
    # At p = 1 a root has no finite slope.
    return -((-log_p.expm1()).clamp_min(1e-6) ** gamma) * log_p


def evaluate(model: nn.Module, batches: Iterable[Batch], *, classes: int) -> dict[str, float]:
    """Returns the accuracy, and the F1 score's mean over the classes that occur or are predicted."""
    table = np.zeros((classes, classes), np.int64)  # by true and predicted class
    for batch in batches:
        told = model(batch["x"]).argmax(1)
        np.add.at(table, (batch["label"].cpu().numpy(), told.cpu().numpy()), 1)
    right, seen = table.diagonal(), table.sum(0) + table.sum(1)
    return {
        "accuracy": float(right.sum() / table.sum()),
        "macro_f1": float((2 * right[seen > 0] / seen[seen > 0]).mean()),
    }
