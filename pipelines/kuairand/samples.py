"""Joins users and videos to the rows of the log: whole batches by index, or one sample after the other."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from sweeper import Samples
from sweeper.trainer.pipeline import Batch

from .tables import Array


def samples_of(arrays: Mapping[str, Array], part: str, num_columns: int) -> Samples:
    """Returns the samples of `part`; its rows have `num_columns` one-hot columns, or codes with 0."""
    own = {name: np.asarray(arrays[f"{part}_{name}"]) for name in ("user", "video", "click", "play_time")}
    for name in ("user_numeric", "user_codes", "video_numeric", "video_codes"):
        own[name] = np.asarray(arrays[name])
    return Samples(
        tensors={name: torch.from_numpy(array) for name, array in own.items()},
        length=len(own["user"]),
        gather=gather,
        row=partial(row, own, num_columns=num_columns),
    )


def gather(tensors: Mapping[str, Tensor], index: Tensor) -> Batch:
    """Returns the samples `index` [batch], users and videos joined to the log.

    Returns:
        `x` [batch, numeric] float32, `codes` [batch, categories] int32, `click` and `play_time`
        [batch] float32; each with `candidates` as its second dimension in the phase simulate.
    """
    user, video = (tensors[name].index_select(0, index) for name in ("user", "video"))
    joined = {}
    for name in ("numeric", "codes"):
        of_user = tensors[f"user_{name}"].index_select(0, user)
        of_video = tensors[f"video_{name}"].index_select(0, video.flatten()).view(*video.shape, -1)
        if video.dim() == 2:
            of_user = of_user.unsqueeze(1).expand(-1, video.shape[1], -1)
        joined[name] = torch.cat((of_user, of_video), dim=-1)
    return {
        "x": joined["numeric"],
        "codes": joined["codes"],
        "click": tensors["click"].index_select(0, index).float(),
        "play_time": tensors["play_time"].index_select(0, index),
    }


def row(arrays: Mapping[str, Array], i: int, *, num_columns: int) -> dict[str, Tensor]:
    """Returns sample `i` as a Dataset written by hand has it: numbers and one-hot columns in one array.

    The guide's program keeps that array of each row in memory, in eight parts, which takes a third of the
    time; here it is made when it is asked for. With `num_columns` 0 it is numbers and codes.
    """
    user, video = arrays["user"][i], arrays["video"][i]
    of_user, of_video = arrays["user_numeric"][user], arrays["video_numeric"][video]
    first, last = len(of_user), len(of_user) + of_video.shape[-1]
    x = np.zeros((*video.shape, last + num_columns), np.float32)
    x[..., :first] = of_user
    x[..., first:last] = of_video
    user_codes, video_codes = arrays["user_codes"][user], arrays["video_codes"][video]
    sample = {"x": torch.from_numpy(x)}
    if num_columns:
        one_hot = x[..., last:]
        for codes in (user_codes, video_codes):
            # With several candidates, each has its own row.
            one_hot[codes if x.ndim == 1 else (np.arange(len(x))[:, None], codes)] = 1.0
    else:
        shape = (*video.shape, len(user_codes))
        codes = np.concatenate((np.broadcast_to(user_codes, shape), video_codes), axis=-1)
        sample["codes"] = torch.from_numpy(codes)
    return sample | {
        "click": torch.from_numpy(np.asarray(arrays["click"][i], np.float32)),
        "play_time": torch.from_numpy(np.asarray(arrays["play_time"][i])),
    }
