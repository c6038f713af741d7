"""Words spelled from recorded hand shapes: runs of consecutive rows, one letter after another."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from sweeper import UserError

from .._reading import left_out
from .clips import Clip

RUN = (6, 15)
"""Rows of a letter in a word."""
WORD = (2, 6)
"""Letters of a word."""
TRAIN_SHARE = 0.8


def read_words(
    path: Path, split: str, count: int, seed: int, notes: list[str], *, recorder: int = -1
) -> tuple[dict[str, list[Clip]], list[str]]:
    """Returns `count` words for train and a fifth as many for val, and the letters.

    No letter follows itself: of one pose, two runs cannot be told from a long one.

    Args:
        path: An .npz of `keypoints` [rows, numbers], `label` [rows], `names` and, to split by recorder,
            `source` [rows] (0 train, 1 val). Consecutive rows of one label are a take.
        split: `position` trains on the first 80 % of each take, `recorder` on one recorder's takes.
        recorder: Whose takes alone are read, where `source` tells them apart; -1 for all.

    Raises:
        UserError: The file cannot be used.
    """
    arrays = _load(path)
    keypoints, label = arrays["keypoints"].astype(np.float32), arrays["label"].astype(np.int64)
    source = arrays["source"].astype(np.int64) if "source" in arrays else np.zeros_like(label)
    finite = np.asarray(np.isfinite(keypoints).all(axis=1))
    left_out(notes, int((~finite).sum()), len(label), "rows", "a number in them is missing", where=path.name)
    new = np.ones(len(label), dtype=bool)
    new[1:] = (label[1:] != label[:-1]) | (source[1:] != source[:-1]) | ~finite[1:] | ~finite[:-1]
    # A row with a missing number becomes a separate take, too short to be used.
    takes = np.split(np.arange(len(label)), np.flatnonzero(new)[1:])
    if recorder >= 0:
        takes = [take for take in takes if source[take[0]] == recorder]

    pieces: dict[str, list[np.ndarray]] = {"train": [], "val": []}
    strange: list[np.ndarray] = []
    for take in takes:
        if split == "position":
            border = int(TRAIN_SHARE * len(take))
            pieces["train"].append(take[:border])
            pieces["val"].append(take[border:])
        elif source[take[0]] in (0, 1):
            pieces[("train", "val")[source[take[0]]]].append(take)
        else:
            strange.append(take)
    short = [piece for own in pieces.values() for piece in own if len(piece) < RUN[0]]
    for why, lost in (
        (f"in a take, or its part of train or val, of less than {RUN[0]} rows", short),
        ("`source` is neither 0 (train) nor 1 (val)", strange),
    ):
        num_rows = sum(int(finite[rows].sum()) for rows in lost)
        left_out(notes, num_rows, len(label), "rows", why, where=path.name)
    rng = np.random.default_rng(seed)
    words = {}
    for part, size in (("train", count), ("val", max(1, count // 5))):
        usable = [piece for piece in pieces[part] if len(piece) >= RUN[0]]
        by_letter = {int(each): [p for p in usable if label[p[0]] == each] for each in np.unique(label)}
        known = [each for each, runs in by_letter.items() if runs]
        if len(known) < 2:
            raise UserError(
                f"{path} needs takes of at least two letters for {part} (`data.split: {split}`), each of "
                f"{RUN[0]} rows and more, but has {len(known)}."
            )
        words[part] = [_word(f"{part}-{n:05d}", keypoints, by_letter, known, rng) for n in range(size)]
    notes.append(
        "Words are composed of recorded hand shapes; "
        + (
            f"validation has the last {1 - TRAIN_SHARE:.0%} of each take, which are the same hand and place."
            if split == "position"
            else "validation has a recorder that training has not seen."
        )
    )
    return words, [str(name) for name in arrays["names"]]


def _word(
    name: str,
    keypoints: np.ndarray,
    by_letter: Mapping[int, list[np.ndarray]],
    known: list[int],
    rng: np.random.Generator,
) -> Clip:
    letters: list[int] = []
    rows: list[np.ndarray] = []
    for _ in range(int(rng.integers(WORD[0], WORD[1] + 1))):
        letter = int(rng.choice([each for each in known if not letters or each != letters[-1]]))
        letters.append(letter)
        runs = by_letter[letter]
        # A take counts by its rows: each row is equally likely to be in a word.
        share = np.array([len(run) for run in runs])
        run = runs[int(rng.choice(len(runs), p=share / share.sum()))]
        length = min(len(run), int(rng.integers(RUN[0], RUN[1] + 1)))
        begin = int(rng.integers(len(run) - length + 1))
        rows.append(run[begin : begin + length])
    picked = np.concatenate(rows)
    return Clip(
        name=name,
        glosses=[letter + 1 for letter in letters],
        length=len(picked),
        read=partial(_rows, keypoints, picked),
    )


def _rows(keypoints: np.ndarray, picked: np.ndarray, kept: np.ndarray) -> np.ndarray:
    rows: np.ndarray = keypoints[picked[kept]]
    return rows


def _load(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path} cannot be read as an .npz file of arrays: {reason}") from error
    if missing := [name for name in ("keypoints", "label", "names") if name not in arrays]:
        raise UserError(
            f"{path} needs the arrays keypoints, label and names, but {', '.join(missing)} is missing."
        )
    keypoints, label = arrays["keypoints"], arrays["label"]
    if keypoints.ndim != 2 or any(
        arrays[name].shape != keypoints.shape[:1] for name in ("label", "source") if name in arrays
    ):
        raise UserError(
            f"{path} needs keypoints [rows, numbers] with a label a row, but got shapes "
            f"{keypoints.shape} and {label.shape}."
        )
    if not (np.issubdtype(keypoints.dtype, np.number) and np.issubdtype(label.dtype, np.integer)):
        raise UserError(
            f"{path} needs numbers as keypoints and integers as label, but got {keypoints.dtype} and "
            f"{label.dtype}."
        )
    bad = np.flatnonzero((label < 0) | (label >= len(arrays["names"])))
    if len(bad):
        raise UserError(
            f"{path} needs labels from 0 to {len(arrays['names']) - 1} (its names), but row {bad[0]} has "
            f"{label[bad[0]]}."
        )
    return arrays
