"""Writes a made-up log as KuaiRand's CSV files, to test and measure reading them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from .made_up import PERIOD_MS, MadeUp
from .tables import (
    USER_NUMERIC,
    USER_TEXT,
    VIDEO_BASIC,
    VIDEO_NUMERIC,
    VIDEO_STATISTIC,
    VIDEO_TEXT,
    Array,
    Table,
)

LOG_CSV = (
    "user_id", "video_id", "date", "hourmin", "time_ms", "is_click", "is_like", "is_follow", "is_comment",
    "is_forward", "is_hate", "long_view", "play_time_ms", "duration_ms", "profile_stay_time",
    "comment_stay_time", "is_profile_enter", "is_rand", "tab",
)  # fmt: skip


def write_csv(made: MadeUp, folder: Path, version: str = "1k", parts: int = 1) -> None:
    """Writes `made` into `folder`, each file whole or in `parts`.

    Columns that the pipeline does not read are 0, including `follow_user_num` of the videos' statistics.
    """
    log, users, videos = made.log, made.users, made.videos
    # Ids are neither row numbers nor dense.
    logged = dict.fromkeys(LOG_CSV) | {
        "user_id": log.user.astype(np.int64) * 2 + 1,
        "video_id": log.video.astype(np.int64) * 3 + 7,
        "time_ms": log.time_ms,
        "is_click": log.click,
        "play_time_ms": log.play_ms,
    }
    half = int(np.searchsorted(log.time_ms, np.mean(PERIOD_MS)))
    for name, rows in (("4_08_to_4_21", slice(half)), ("4_22_to_5_08", slice(half, None))):
        part = {key: None if column is None else column[rows] for key, column in logged.items()}
        _write(folder, f"log_standard_{name}_{version}", part, parts)
    video_id = {"video_id": np.arange(len(videos.codes)) * 3 + 7}
    _write(
        folder,
        f"user_features_{version}",
        {"user_id": np.arange(len(users.codes)) * 2 + 1}
        | dict(zip(USER_NUMERIC, users.numeric.T, strict=True))
        | _texts(users, USER_TEXT),
    )
    numeric = dict(zip(VIDEO_NUMERIC, videos.numeric.T, strict=True))
    basic = {name: numeric[name] for name in VIDEO_BASIC}
    _write(folder, f"video_features_basic_{version}", video_id | basic | _texts(videos, VIDEO_TEXT))
    statistic = {name: numeric[name] for name in VIDEO_STATISTIC}
    _write(
        folder,
        f"video_features_statistic_{version}",
        video_id | {"counts": None} | statistic | {"follow_user_num": None},
        parts,
    )


def _texts(table: Table, names: tuple[str, ...]) -> dict[str, Array]:
    levels = (np.asarray(["", *levels], dtype=object) for levels in table.levels)
    return {name: known[table.codes[:, i]] for i, (name, known) in enumerate(zip(names, levels, strict=True))}


def _write(folder: Path, name: str, columns: Mapping[str, Array | None], parts: int = 1) -> None:
    count = next(len(column) for column in columns.values() if column is not None)
    edges = np.linspace(0, count, parts + 1).astype(int)
    for part in range(parts):
        rows = slice(edges[part], edges[part + 1])
        frame = pd.DataFrame({key: 0 if val is None else val[rows] for key, val in columns.items()})
        suffix = f"_part{part + 1}" if parts > 1 else ""
        frame.to_csv(folder / f"{name}{suffix}.csv", index=False)
