"""KuaiRand in compact form: a table of users, one of videos, and the log as columns that point into them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sweeper import UserError

from .._reading import left_out

Array = np.ndarray[Any, Any]

USER_NUMERIC = (
    "is_live_streamer",
    "is_video_author",
    "follow_user_num",
    "fans_user_num",
    "friend_user_num",
    "register_days",
)
USER_TEXT = ("user_active_degree",)
VIDEO_BASIC = ("video_duration", "server_width", "server_height")
VIDEO_STATISTIC = (
    "show_cnt",
    "play_cnt",
    "play_user_num",
    "complete_play_cnt",
    "like_cnt",
    "comment_cnt",
    "share_cnt",
    "collect_cnt",
)
VIDEO_NUMERIC = VIDEO_BASIC + VIDEO_STATISTIC
VIDEO_TEXT = ("video_type", "tag")


@dataclass(frozen=True, slots=True)
class Table:
    """Users or videos, one a row.

    Attributes:
        numeric: [rows, features] float32, as in the files; NaN where unknown.
        codes: [rows, categories] int32; 0 is unknown, n the n-th of the category's `levels`.
        levels: The distinct texts of each category, ascending.
    """

    numeric: Array
    codes: Array
    levels: list[list[str]]


@dataclass(frozen=True, slots=True)
class Log:
    """Impressions, one a row, each array [rows].

    Attributes:
        user: Row of the table of users (int32).
        video: Row of the table of videos (int32).
        click: 0 or 1 (uint8).
        play_ms: Time that the video was played for (int32 or int64).
        time_ms: Time of the impression (int64).
    """

    user: Array
    video: Array
    click: Array
    play_ms: Array
    time_ms: Array


def split_by_time(time_ms: Array, val_share: float) -> tuple[Array, Array]:
    """Returns the rows of the training and of the validation part: the last `val_share` by time.

    Rows of the very moment at which they part are all validation's.

    Raises:
        UserError: One of them would be empty.
    """
    at = int((1 - val_share) * len(time_ms))
    cut = np.partition(time_ms, at)[at] if at < len(time_ms) else 0
    train = time_ms < cut
    if not train.any():
        raise UserError(
            f"`data` needs rows before and after a moment that {val_share:.0%} of them come after, but got "
            f"{len(time_ms)} rows, too many of one `time_ms`."
        )
    return np.flatnonzero(train), np.flatnonzero(~train)


def standardise(numeric: Array, names: tuple[str, ...], known: Array) -> Array:
    """Returns features of mean 0 and sd 1 over the rows `known` (bool); what is unknown becomes 0.

    Negative numbers (KuaiRand's -124) are unknown. Counts and durations are taken as log(1 + x): the
    tails of the plain ones reach hundreds of standard deviations.
    """
    scaled = np.zeros(numeric.shape, np.float32)
    for i, name in enumerate(names):
        column = numeric[:, i].astype(np.float64)
        column[~(column >= 0) | np.isinf(column)] = np.nan
        if name.endswith(("_cnt", "_num", "_duration")):
            column = np.log1p(column)
        fit = column[known & np.isfinite(column)]
        if len(fit):
            scaled[:, i] = np.nan_to_num((column - fit.mean()) / max(fit.std(), 1e-6))
    return scaled


def group_by_user(user: Array, rows: Array, size: int, seed: int, notes: list[str]) -> Array:
    """Returns `rows` as [groups, size], each of one user: their impressions in a random order.

    What does not fill a group is left out, with a note.

    Raises:
        UserError: No user has so many rows.
    """
    user = user[rows]
    order = np.lexsort((np.random.default_rng(seed).random(len(user)), user))
    counts = np.bincount(user)
    place = np.arange(len(user)) - np.repeat(counts.cumsum() - counts, counts)
    whole = np.repeat(counts // size * size, counts)
    groups: Array = rows[order[place < whole]].reshape(-1, size)
    if not len(groups):
        raise UserError(
            f"`data.candidates` must be at most the rows of some user, {counts.max()} in one of the parts, "
            f"but got {size}."
        )
    lost = len(rows) - groups.size
    left_out(notes, lost, len(rows), "rows", f"they do not fill {size} candidates of one user")
    return groups


def draw(samples: Array, most: int, seed: int, notes: list[str]) -> Array:
    """Returns at most `most` of `samples` [samples, ...], drawn at random and in their order.

    The others are counted in a note.
    """
    if len(samples) <= most:
        return samples
    why = f"`data.val_samples` is {most}; they are drawn at random"
    left_out(notes, len(samples) - most, len(samples), "validation samples", why)
    kept = np.random.default_rng(seed).choice(len(samples), most, replace=False)
    drawn: Array = samples[np.sort(kept)]
    return drawn


def constant_losses(train: Mapping[str, Array], val: Mapping[str, Array]) -> dict[str, float]:
    """Returns the validation loss of each label for the constant that is best on the training part."""
    rate = float(np.clip(train["click"].mean(dtype=np.float64), 1e-6, 1 - 1e-6))
    median = float(np.median(train["play_time"]))
    return {
        "click": float(bernoulli_loss(val["click"], np.log(rate / (1 - rate)))),
        "play_time": float(np.abs(val["play_time"] - median).mean(dtype=np.float64)),
    }


def bernoulli_loss(click: Array, logit: Array | float) -> float:
    """Returns the mean cross entropy of `click` (0 or 1) for predictions `logit`."""
    return float((np.logaddexp(0, logit) - click * np.asarray(logit)).mean(dtype=np.float64))
