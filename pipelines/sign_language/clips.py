"""Clips of any source, chosen and laid end to end."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import psutil

from sweeper import UserError

from .._reading import left_out

UNKNOWN = -1
"""In a reference: a gloss that training does not know."""
MEMORY_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """One clip, its frames unread.

    Attributes:
        name: As it is called in messages.
        glosses: Ids of its glosses, 1 and above, or UNKNOWN.
        length: Number of its frames.
        read: Takes the frames' numbers (int64), gives those frames.
    """

    name: str
    glosses: Sequence[int]
    length: int
    read: Callable[[np.ndarray], np.ndarray]

    @property
    def labels(self) -> list[int]:
        """The glosses that training knows."""
        return [gloss for gloss in self.glosses if gloss != UNKNOWN]

    @property
    def least_steps(self) -> int:
        """The fewest steps that CTC can spell the labels in: repeats have a blank between them."""
        labels = self.labels
        return len(labels) + sum(a == b for a, b in itertools.pairwise(labels))


def choose(
    part: str, clips: Sequence[Clip], *, max_frames: int, step_frames: int, notes: list[str]
) -> list[Clip]:
    """Returns the clips that can be trained on; the others are counted in `notes`.

    Raises:
        UserError: None is left.
    """

    def steps(clip: Clip) -> int:
        return min(clip.length, max_frames or clip.length) // step_frames

    short = [clip for clip in clips if clip.least_steps > steps(clip)]
    empty = [clip for clip in clips if not clip.labels]
    for lost, why in (
        (short, f"too short for their glosses at {step_frames} frames a step (`data.step_frames`)"),
        (empty, "without a gloss that training knows"),
    ):
        left_out(notes, len(lost), len(clips), "clips", why, where=part, first=lost[0].name if lost else "")
    kept = [clip for clip in clips if clip.labels and clip.least_steps <= steps(clip)]
    if not kept:
        raise UserError(f"`data` needs a clip to use for {part}, but got none. {' '.join(notes)}".strip())
    sampled = sum(clip.length > max_frames for clip in kept) if max_frames else 0
    if sampled:
        notes.append(f"{part}: {sampled} clips sampled evenly to {max_frames} frames (`data.max_frames`).")
    return kept


def lay_out(clips: Sequence[Clip], *, max_frames: int) -> dict[str, np.ndarray]:
    """Returns all `frames` [frames + longest, ...], and per clip where they `start` and what they say.

    That is `lengths`, `counts` (of labels), `labels` and `reference` [clips, most], padded by 0: the
    glosses that training knows, and all of them. The frames end with as many zeros as the longest clip
    has, so that any clip can be read to that length.

    Raises:
        UserError: They do not fit into memory.
    """
    lengths = np.array([min(clip.length, max_frames or clip.length) for clip in clips])
    longest = int(lengths.max())
    first = clips[0].read(np.arange(1))
    rows, bytes_of_one = int(lengths.sum()) + longest, first[0].nbytes
    if rows * bytes_of_one > MEMORY_SHARE * psutil.virtual_memory().available:
        raise UserError(
            f"`data` must fit into {MEMORY_SHARE:.0%} of the free memory, but {rows} frames take "
            f"{rows * bytes_of_one / 2**30:.1f} GiB; lower `data.max_frames`, `data.crop` or `data.clips`."
        )
    frames = np.zeros((rows, *first.shape[1:]), dtype=first.dtype)
    start = np.cumsum(lengths) - lengths
    for clip, at, length in zip(clips, start, lengths, strict=True):
        kept = np.linspace(0, clip.length - 1, length).astype(np.int64)
        read = clip.read(kept)
        if read.shape[1:] != first.shape[1:]:
            raise UserError(
                f"{clip.name} must have frames of shape {first.shape[1:]} as {clips[0].name} has, "
                f"but got {read.shape[1:]}."
            )
        frames[at : at + length] = read
    return {
        "frames": frames,
        "start": start,
        "lengths": lengths,
        "counts": np.array([len(clip.labels) for clip in clips]),
        "labels": _padded([clip.labels for clip in clips]),
        "reference": _padded([clip.glosses for clip in clips]),
    }


def _padded(lists: Sequence[Sequence[int]]) -> np.ndarray:
    table = np.zeros((len(lists), max(map(len, lists))), dtype=np.int64)
    for row, values in zip(table, lists, strict=True):
        row[: len(values)] = values
    return table
