"""Pieces: windows with classes that belong together, split so that no piece is on both sides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sweeper import UserError

CLIP = 10.0
"""Standardised channels end here, so that one knock on the sensor cannot rule a window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Windows that belong together: of one recording, or one that stands alone.

    Attributes:
        name: For messages.
        x: [time, channels] (float32).
        start: Where windows begin in `x`, [windows].
        label: The class of each window, [windows].
        part: `train` or `val`, where the data itself says so; else it is drawn.
    """

    name: str
    x: np.ndarray
    start: np.ndarray
    label: np.ndarray
    part: str = ""


def ready(name: str, windows: np.ndarray, labels: Sequence[str], part: str = "") -> Piece:
    """Returns ready windows [count, time, channels] as a piece: end to end, one begins where one ends."""
    count, time, channels = windows.shape
    flat = np.ascontiguousarray(windows, np.float32).reshape(-1, channels)
    return Piece(name=name, x=flat, start=np.arange(count) * time, label=np.asarray(labels), part=part)


def stride(opt: Mapping[str, Any]) -> int:
    """Returns the samples from the start of a window to that of the next."""
    step: int = max(1, round(opt["window"] * (1 - opt["overlap"])))
    return step


def cut(
    name: str, x: np.ndarray, spans: Sequence[tuple[str, int, int]], opt: Mapping[str, Any]
) -> tuple[Piece, int]:
    """Returns a recording cut into windows, and how many of them were left out.

    Args:
        x: [time, channels].
        spans: Which class its samples are of, as `(class, first, end)`; others are of the class
            `background`, or of none.
        opt: `window`, `overlap` and `background`.

    A window is of its commonest class, and left out where that is none.
    """
    window = opt["window"]
    start = np.arange(0, len(x) - window + 1, stride(opt))
    labels = sorted({opt["background"]} | {label for label, _, _ in spans})
    number = np.full(len(x), labels.index(opt["background"]))
    for label, first, end in spans:
        number[first:end] = labels.index(label)
    before = np.cumsum(number[:, None] == np.arange(len(labels)), axis=0)
    before = np.concatenate((np.zeros((1, len(labels)), before.dtype), before))
    label = np.array(labels)[(before[start + window] - before[start]).argmax(axis=1)]
    kept = label != ""
    return Piece(name=name, x=x, start=start[kept], label=label[kept]), int((~kept).sum())


def split(pieces: Sequence[Piece], fraction: float, seed: int, notes: list[str]) -> dict[str, list[Piece]]:
    """Returns the pieces of `train` and `val`: `fraction` of each class's pieces is held back.

    A piece counts for the commonest class of its windows. A class of a single piece is trained on.
    """
    parts: dict[str, list[Piece]] = {"train": [], "val": []}
    by_class: dict[str, list[Piece]] = {}
    for piece in pieces:
        if piece.part:
            parts[piece.part].append(piece)
        else:
            by_class.setdefault(Counter(piece.label.tolist()).most_common(1)[0][0], []).append(piece)
    rng = np.random.default_rng(seed)
    for label, own in sorted(by_class.items()):
        held = max(1, round(fraction * len(own))) if len(own) > 1 else 0
        if not held:
            notes.append(f"Class {label!r} is in one recording, which is trained on: none is held back.")
        order = rng.permutation(len(own))
        for place, i in enumerate(order):
            parts["val" if place < held else "train"].append(own[i])
    return parts


def arrays(parts: dict[str, list[Piece]], notes: list[str]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Returns what is kept, and the classes by number.

    Returns:
        For `train` and `val`: `_series` [time, channels] (float32), pieces end to end, standardised by
        the mean and sd over all training samples; `_start` and `_label` [windows] (int64).

    Raises:
        UserError: A part has no windows, there is one class alone, or one is held back altogether.
    """
    labels = {part: [str(y) for p in own for y in p.label] for part, own in parts.items()}
    for part, told in labels.items():
        if not told:
            raise UserError(
                f"`data` needs two recordings of a class, one to train on and one to hold back, but "
                f"{'nothing is left to train on' if part == 'train' else 'no class has two'}."
            )
    classes = sorted(set(labels["train"]))
    if len(classes) < 2:
        raise UserError(f"`data` needs at least two classes to tell apart, but got {classes[0]!r} alone.")
    if unknown := sorted(set(labels["val"]) - set(classes)):
        raise UserError(
            f"Every class must be in the training part, but {unknown[0]!r} is only in what is held back; "
            f"give it more recordings, or another `data.seed`."
        )
    counts = {part: Counter(told) for part, told in labels.items()}
    each = ", ".join(f"{name} {counts['train'][name]} + {counts['val'][name]}" for name in classes)
    num = {part: len(own) for part, own in parts.items()}
    notes.append(f"Windows to train on + held back: {each}; from {num['train']} + {num['val']} recordings.")

    known = np.concatenate([piece.x for piece in parts["train"]])
    mean, sd = known.mean(axis=0, dtype=np.float64), known.std(axis=0, dtype=np.float64)
    sd = np.where(sd > 1e-9 * np.abs(mean), sd, 1.0)
    out = {}
    for part, own in parts.items():
        offset = np.cumsum([0, *(len(piece.x) for piece in own)])
        series = np.concatenate([piece.x for piece in own])
        out[f"{part}_series"] = ((series - mean) / sd).clip(-CLIP, CLIP).astype(np.float32)
        out[f"{part}_start"] = np.concatenate(
            [piece.start + begin for piece, begin in zip(own, offset, strict=False)]
        ).astype(np.int64)
        out[f"{part}_label"] = np.searchsorted(classes, labels[part]).astype(np.int64)
    return out, classes
