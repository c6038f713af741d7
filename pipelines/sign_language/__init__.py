"""Reads the glosses of a signed sentence from its frames or landmarks: two branches, BiLSTMs and CTC."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sweeper import Pipeline, Prepared, Samples, TrialConfig, UserError
from sweeper.trainer.pipeline import Batch, take_windows

from .._options import choice, options, trial_data
from .._reading import visible
from .clips import Clip, choose, lay_out
from .constant import constant_losses
from .corpus import read_corpus
from .ctc import ctc_loss
from .decode import error_rates
from .letters import read_words
from .made_up import make_clips
from .model import SignModel, inside

DATA = {
    "source": "synthetic",
    "path": "",
    "split": "auto",
    "recorder": -1,
    "limit": 0,
    "kind": "landmarks",
    "clips": 2000,
    "glosses": 200,
    "crop": 160,
    "max_frames": 300,
    "step_frames": 4,
    "seed": 0,
}
MODEL = {"hidden_size": 64, "num_layers": 2, "width": 64, "dropout": 0.0, "distill": 0.0}
SPACE = {"model.hidden_size": (64, 128, 256)}
STEPS = (1, 2, 4)
TEMPERATURE = 8.0
"""Of the distillation: SeqKD with T = 8, as TFNet has it."""


def prepare(data: Mapping[str, Any]) -> Prepared:
    """Returns the frames of all clips end to end, with the glosses of each.

    Args:
        data: `path` (a folder as CE-CSL's, see `corpus`, or an .npz of hand shapes, see `letters`),
            `split` (what to validate on: dev or test of a corpus, position or recorder of hand shapes),
            `recorder` (of hand shapes, -1 for all), `limit` (rows of a corpus), `crop` (pixels of an
            image's side), `max_frames` (longer clips are sampled evenly; 0 for no limit), `step_frames`
            (frames to an output step: 1, 2 or 4), `clips` (words to spell or clips to make up); without
            a path `kind` (landmarks or frames) and `glosses` of made-up clips.

    Returns:
        For `train` and `val` what `clips.lay_out` gives. Landmarks are standardised with training
        statistics, as float16; images are uint8.

    Raises:
        UserError: An option or a file cannot be used, or no clip is long enough for its glosses.
    """
    opt = options(
        "data", data, DATA, {"recorder": -1, "clips": 10, "glosses": 2, "crop": 32, "step_frames": 1}
    )
    _step_frames(opt["step_frames"])
    notes: list[str] = []
    clips, names = _read(opt, notes)
    limits = {"max_frames": opt["max_frames"], "step_frames": opt["step_frames"]}
    kept = {part: choose(part, clips[part], **limits, notes=notes) for part in ("train", "val")}
    laid = {part: lay_out(kept[part], max_frames=opt["max_frames"]) for part in kept}
    shape = list(laid["train"]["frames"].shape[1:])
    if list(laid["val"]["frames"].shape[1:]) != shape:
        raise UserError(
            f"`data` needs frames of one shape, but got {tuple(shape)} for train and "
            f"{laid['val']['frames'].shape[1:]} for val."
        )
    if len(shape) == 1:
        _standardise(laid, notes)
    return Prepared(
        arrays={f"{part}_{name}": array for part in laid for name, array in laid[part].items()},
        meta={
            "data": opt,
            "glosses": names,
            "constant_loss": constant_losses(
                laid["train"], laid["val"], len(names), [s for s in STEPS if s <= opt["step_frames"]]
            ),
        },
        synthetic=not opt["path"],
        notes=notes,
    )


def _read(opt: Mapping[str, Any], notes: list[str]) -> tuple[dict[str, list[Clip]], list[str]]:
    """Returns the clips of train and val, and the glosses' names."""
    if not opt["path"]:
        choice("data.source", opt["source"], ("synthetic",))
        choice("data.split", opt["split"], ("auto",))
        kind = choice("data.kind", opt["kind"], ("landmarks", "frames"))
        clips, names = make_clips(opt["clips"], opt["glosses"], kind, opt["crop"], opt["seed"])
        notes.append(
            f"The clips are made up: {len(clips)} of them, of {len(names)} glosses that are random "
            f"movements, as {kind}; nothing here was ever signed. `data.path` names a real corpus."
        )
        border = int(0.9 * len(clips))
        return {"train": clips[:border], "val": clips[border:]}, names
    path = Path(opt["path"]).expanduser()
    shapes = [path] if path.suffix == ".npz" else visible(path.glob("*.npz"), path)
    if (path / "label").is_dir():
        val = choice("data.split", opt["split"], ("auto", "dev", "test"))
        return read_corpus(path, "dev" if val == "auto" else val, opt["limit"], opt["crop"], notes)
    if len(shapes) != 1 or not shapes[0].is_file():
        raise UserError(
            f"`data.path` must be a folder with label/ and video/ as CE-CSL has them, or an .npz of hand "
            f"shapes (or a folder with one of them), but got {path}."
        )
    split = choice("data.split", opt["split"], ("auto", "position", "recorder"))
    split = "position" if split == "auto" else split
    return read_words(shapes[0], split, opt["clips"], opt["seed"], notes, recorder=opt["recorder"])


def _standardise(laid: dict[str, dict[str, np.ndarray]], notes: list[str]) -> None:
    """Scales landmarks by mean and sd of the training frames; a missing one becomes its mean."""
    known = laid["train"]["frames"][: int(laid["train"]["lengths"].sum())]
    known = np.where(np.isfinite(known), known, np.nan).astype(np.float64)
    if np.isnan(known).all(axis=0).any():
        raise UserError(
            "`data` needs a number for each landmark in some frame of train, but one never has any."
        )
    mean, sd = np.nanmean(known, axis=0), np.maximum(np.nanstd(known, axis=0), 1e-6)
    for part, arrays in laid.items():
        scaled = (arrays["frames"] - mean) / sd
        missing = ~np.isfinite(scaled)
        if missing.any():
            notes.append(
                f"{part}: {int(missing.sum())} missing landmarks were replaced by their training mean."
            )
        arrays["frames"] = np.where(missing, 0.0, scaled).clip(-20, 20).astype(np.float16)


def _step_frames(value: int) -> int:
    if value not in STEPS:
        raise UserError(f"`data.step_frames` must be 1, 2 or 4, but got {value!r}.")
    return value


def build(config: TrialConfig, prepared: Prepared) -> Pipeline:
    """Returns the model on clips whose lengths differ, with CTC.

    `model` may hold hidden_size, num_layers (of a BiLSTM), width (features of a frame of landmarks; an
    eighth of those of an image), dropout (of them) and distill (weight of the distillation). A trial may
    also choose a smaller `data.step_frames` than the data was prepared with.

    In training the loss is the mean over five heads, in validation that of the fused one; both are per
    gloss.

    Raises:
        UserError: An option is unknown or cannot be had.
    """
    made_with = prepared.meta["data"]
    data = trial_data(config.data, made_with, "step_frames")
    step_frames = _step_frames(data["step_frames"])
    if step_frames > made_with["step_frames"]:
        raise UserError(
            f"`data.step_frames` of a trial must be at most the sweep's {made_with['step_frames']}, for "
            f"which clips were chosen, but got {step_frames}; set it for the whole sweep."
        )
    model = options("model", config.model, MODEL, {"hidden_size": 2, "num_layers": 1, "width": 1})
    if model["dropout"] >= 1:
        raise UserError(f"`model.dropout < 1` must hold, but got {model['dropout']!r}.")
    distill = model.pop("distill")
    train, val = (_samples(prepared.arrays, part) for part in ("train", "val"))
    shape = list(prepared.arrays["train_frames"].shape[1:])
    return Pipeline(
        model=SignModel(shape, len(prepared.meta["glosses"]) + 1, step_frames=step_frames, **model),
        train=train,
        val=val,
        loss=partial(loss, distill=distill),
        constant_loss=prepared.meta["constant_loss"][str(step_frames)],
        evaluate=error_rates,
    )


def loss(model: nn.Module, batch: Batch, *, distill: float = 0.0) -> Tensor:
    """Returns the mean CTC loss per gloss over clips and heads, and in training what distils.

    With a weight, the convolutions' head of each branch also learns from its BiLSTM's.
    """
    scores, steps = model(batch["x"], batch["lengths"])
    scores = scores.float()
    found = ctc_loss(scores.log_softmax(-1), batch["labels"], steps, batch["counts"])
    if distill and len(scores) > 1:
        known = inside(steps, scores.shape[2])
        softer = scores[:4, :, :, 1:] / TEMPERATURE
        teacher, student = softer[0::2].detach().softmax(-1), softer[1::2].log_softmax(-1)
        apart = functional.kl_div(student, teacher, reduction="none").sum(-1) * known
        found = found + distill * TEMPERATURE**2 * apart.sum() / (2 * known.sum())
    return found


def _samples(arrays: Mapping[str, np.ndarray], part: str) -> Samples:
    names = ("frames", "start", "lengths", "labels", "counts", "reference")
    own = {name: np.asarray(arrays[f"{part}_{name}"]) for name in names}
    shape = own["frames"].shape[1:]
    own["frames"] = own["frames"].reshape(len(own["frames"]), -1)
    tensors = {name: torch.from_numpy(array) for name, array in own.items()}
    return Samples(
        tensors=tensors,
        length=len(own["start"]),
        gather=partial(gather, shape=shape),
        row=partial(row, own, shape=shape),
        lengths=tensors["lengths"],
    )


def gather(tensors: Mapping[str, Tensor], index: Tensor, *, length: int, shape: tuple[int, ...]) -> Batch:
    """Returns the clips `index` [batch]: x [batch, length, ...], 0 beyond a clip's end, and what it says."""
    own = {
        name: tensors[name].index_select(0, index) for name in ("lengths", "labels", "counts", "reference")
    }
    start = tensors["start"].index_select(0, index)
    windows = take_windows(tensors["frames"], start, length)
    known = inside(own["lengths"], length).unsqueeze(2)
    return {"x": (windows * known).view(-1, length, *shape), **own}


def row(
    arrays: Mapping[str, np.ndarray], i: int, *, length: int, shape: tuple[int, ...]
) -> dict[str, Tensor]:
    """Returns clip `i` as a `__getitem__` written by hand does: frame by frame into a padded tensor."""
    own = {name: torch.tensor(arrays[name][i]) for name in ("lengths", "labels", "counts", "reference")}
    start, frames = int(arrays["start"][i]), arrays["frames"]
    clip = [torch.tensor(frames[start + t]).view(shape) for t in range(int(arrays["lengths"][i]))]
    clip += [torch.zeros_like(clip[0])] * (length - len(clip))
    return {"x": torch.stack(clip), **own}
