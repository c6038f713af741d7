"""Predicts clicks and play time of a recommender's log (KuaiRand), and simulates two policies on it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sweeper import Pipeline, Prepared, TrialConfig, UserError

from .._options import choice, options, trial_data
from . import model as pretrain
from . import simulate
from .samples import samples_of
from .tables import (
    USER_NUMERIC,
    VIDEO_NUMERIC,
    Array,
    constant_losses,
    draw,
    group_by_user,
    split_by_time,
    standardise,
)

DATA = {
    "source": "synthetic",
    "path": "",
    "logs": "standard",
    "phase": "pretrain",
    "candidates": 10,
    "val_share": 0.1,
    "val_samples": 25_000,
    "users": 1000,
    "videos": 100_000,
    "rows": 1_000_000,
    "seed": 0,
}
MODEL = {
    "hidden_size": 128,
    "labels": "both",
    "encoding": "onehot",
    "embedding_dim": 16,
    "click_dropout": 0.2,
    "play_time_dropout": 0.3,
    "treatment_click": 1.0,
    "treatment_play_time": 1.0,
    "control_click": 0.8,
    "control_play_time": 0.5,
}
CHOICES = {"labels": ("both", *pretrain.LABELS), "encoding": ("onehot", "embedding")}
"""What each word among them may be."""
SPACE = {"model.hidden_size": (64, 128, 256), "model.encoding": ("onehot", "embedding")}
ARMS = ("treatment", "control")


def prepare(data: Mapping[str, Any]) -> Prepared:
    """Returns the log as columns that point into a table of users and one of videos.

    The last `val_share` of the rows by time are held back: who recommends does not know tomorrow. A
    random split would tell from the same evening's other rows. (The videos' counts are KuaiRand's own,
    of the whole month; they cannot be split.)

    Args:
        data: `path` (a folder of KuaiRand-Pure, 1K or 27K, in shards or not), `logs` (standard, random
            or all), `phase` (pretrain: a sample is a row; simulate: `candidates` rows of one user),
            `val_share`, `val_samples` (at most so many, drawn at random); without a path `users`,
            `videos`, `rows` and `seed` of made-up data.

    Returns:
        `user_numeric` and `video_numeric` [rows, features] float32, standardised by the users and
        videos of the training part, 0 where unknown; `user_codes` and `video_codes` [rows, categories]
        int32, counted through all categories. For `train` and `val`: `_user` [samples] and `_video`
        int32 (rows of the tables), `_click` uint8 and `_play_time` float32 (log(1 + seconds)), these
        three [samples], or [samples, candidates] in the phase simulate.

    Raises:
        UserError: An option or a file cannot be used, or there are too few rows.
    """
    opt = options("data", data, DATA, {"users": 1, "videos": 1, "candidates": 2, "val_samples": 1})
    choice("data.logs", opt["logs"], ("standard", "random", "all"))
    simulated = choice("data.phase", opt["phase"], ("pretrain", "simulate")) == "simulate"
    if not 0 < opt["val_share"] < 1:
        raise UserError(f"`0 < data.val_share < 1` must hold, but got {opt['val_share']!r}.")
    notes: list[str] = []
    made_up = None
    if opt["path"]:
        from .files import read_folder  # needs pandas, and a trial only calls build

        users, videos, log = read_folder(Path(opt["path"]), opt["logs"], notes)
    else:
        from .made_up import MadeUp

        choice("data.source", opt["source"], ("synthetic",))
        made_up = MadeUp(opt["users"], opt["videos"], opt["rows"], opt["seed"])
        users, videos, log = made_up.users, made_up.videos, made_up.log
        notes.append(
            f"The log is made up: {opt['rows']} impressions of {len(users.codes)} users whose clicks "
            "follow a known function of the features; `data.path` names a KuaiRand folder."
        )
    if len(log.user) < 20:
        raise UserError(f"`data` needs at least 20 rows, but got {len(log.user)}.")

    columns = {
        "user": log.user,
        "video": log.video,
        "click": log.click,
        "play_time": np.log1p(log.play_ms.astype(np.float32) / np.float32(1000)),
    }
    train_rows, val_rows = split_by_time(log.time_ms, opt["val_share"])
    if simulated:
        train_rows, val_rows = (
            group_by_user(log.user, rows, opt["candidates"], opt["seed"], notes)
            for rows in (train_rows, val_rows)
        )
    val_rows = draw(val_rows, opt["val_samples"], opt["seed"], notes)
    train, val = ({name: column[rows] for name, column in columns.items()} for rows in (train_rows, val_rows))
    if not simulated:
        clicks = float(val["click"].mean())
        notes.append(
            f"{max(clicks, 1 - clicks):.1%} accuracy is what one answer for all validation rows gives."
        )
    arrays: dict[str, Array] = {}
    for part, own in (("train", train), ("val", val)):
        # All rows of a simulated sample are of one user.
        own["user"] = np.ascontiguousarray(own["user"][:, 0]) if simulated else own["user"]
        arrays |= {f"{part}_{name}": array for name, array in own.items()}

    first = 0
    for kind, table, names in (("user", users, USER_NUMERIC), ("video", videos, VIDEO_NUMERIC)):
        known = np.zeros(len(table.codes), bool)
        known[train[kind]] = True
        arrays[f"{kind}_numeric"] = standardise(table.numeric, names, known)
        # Every category has a code for unknown values, and its codes follow those of the category before.
        sizes = [len(levels) + 1 for levels in table.levels]
        arrays[f"{kind}_codes"] = (table.codes + first + np.cumsum([0, *sizes[:-1]])).astype(np.int32)
        first += sum(sizes)
    return Prepared(
        arrays=arrays,
        meta={
            "data": opt,
            "num_codes": first,
            # In a simulation the rows that count depend on what the policy picks.
            "constant": {} if simulated else constant_losses(train, val),
            "best": made_up.best_losses(val_rows) if made_up and not simulated else {},
        },
        synthetic=made_up is not None,
        notes=notes,
    )


def build(config: TrialConfig, prepared: Prepared) -> Pipeline:
    """Returns an MLP for each label (in the phase simulate, for each label of each arm).

    `model` may hold `hidden_size` (128 has the guide's widths), `labels` (both, click or play_time),
    `encoding` (onehot, or embedding of `embedding_dim`), the dropouts, and the weights by which an arm
    scores. With `onehot` the categories come written out from the `rows` loader, as the guide's program
    has them, and as codes from the others: the same model on the same data, so that their speeds compare.

    Raises:
        UserError: An option cannot be used.
    """
    data = trial_data(config.data, prepared.meta["data"])
    simulated = data["phase"] == "simulate"
    opt = options("model", config.model, MODEL, {"hidden_size": 8, "embedding_dim": 1})
    choice("model.labels", opt["labels"], CHOICES["labels"])
    one_hot = choice("model.encoding", opt["encoding"], CHOICES["encoding"]) == "onehot"
    for key in ("click_dropout", "play_time_dropout"):
        if opt[key] >= 1:
            raise UserError(f"`model.{key} < 1` must hold, but got {opt[key]!r}.")
    if simulated and opt["labels"] != "both":
        raise UserError(f"`data.phase: simulate` needs `model.labels: both`, but got {opt['labels']!r}.")

    arrays = prepared.arrays
    sizes = (
        arrays["user_numeric"].shape[1] + arrays["video_numeric"].shape[1],
        prepared.meta["num_codes"],
        arrays["user_codes"].shape[1] + arrays["video_codes"].shape[1],
    )
    alphas = {arm: (opt.pop(f"{arm}_click"), opt.pop(f"{arm}_play_time")) for arm in ARMS}
    make = partial(pretrain.Recommender, sizes, **opt)
    train, val = (samples_of(arrays, part, sizes[1] if one_hot else 0) for part in ("train", "val"))
    if simulated:
        return Pipeline(
            model=simulate.Arms(make, alphas),
            train=train,
            val=val,
            loss=simulate.loss,
            evaluate=simulate.evaluate,
        )
    model = make()
    constant, best = (
        sum(known[label] for label in model.labels) if known else None
        for known in (prepared.meta["constant"], prepared.meta["best"])
    )
    return Pipeline(
        model=model,
        train=train,
        val=val,
        loss=pretrain.loss,
        constant_loss=constant,
        best_loss=best,
        evaluate=pretrain.evaluate,
    )
