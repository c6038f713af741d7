"""Reads text recordings, a line of numbers per sample, and cuts them into labelled windows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sweeper import UserError

from .._reading import left_out
from .events import Events, read_events
from .pieces import Piece, cut, stride

WORDS = {
    "chew": ("chew", "咀嚼"),
    "drink": ("drink", "喝水", "饮水"),
    "cough": ("cough", "咳嗽"),
    "swallow": ("swallow", "吞咽"),
    "talk": ("talk", "说话"),
    "rest": ("rest", "静息"),
}
"""The classes of guide 002's recordings, and the words for them in its file names."""
WHY = {
    "lines": "no whole sample",
    "events": "they begin after the end of their recording",
    "windows": "mostly in no event",
    "samples": "after the last whole window of their recording",
}
"""Why each of them may be left out."""
TORN = 0.05
"""With a larger share of lines that are no samples it is not a torn log, but another format."""


def read_recordings(
    root: Path, files: Sequence[Path], opt: Mapping[str, Any], notes: list[str]
) -> list[Piece]:
    """Returns the recordings in `files` cut into windows; what was left out is told in `notes`.

    Raises:
        UserError: A file or its label cannot be used, or no window is left.
    """
    events = read_events(root, files, opt, notes)
    pieces: list[Piece] = []
    skipped: dict[str, list[str]] = {}
    contents: dict[bytes, str] = {}
    lost: Counter[str] = Counter()
    total: Counter[str] = Counter()
    rates = []
    for file in files:
        name = str(file.relative_to(root))
        if events is not None and file not in events:
            skipped.setdefault(f"not in {opt['events']}", []).append(name)
            continue
        # Before the numbers are read, so that a missing label is reported at once.
        known = Events.whole(_label_of(file, root, opt["labels"])) if events is None else events[file]
        x, torn = read_samples(file)
        if pieces and x.shape[1] != pieces[0].x.shape[1]:
            raise UserError(
                f"Every recording must have as many channels as the first, {pieces[0].x.shape[1]}, but "
                f"{file} has {x.shape[1]}."
            )
        if len(x) < opt["window"]:
            skipped.setdefault(f"shorter than a window of {opt['window']} samples", []).append(name)
            continue
        if (first := contents.setdefault(x.tobytes(), name)) != name:
            skipped.setdefault("copies of others", []).append(f"{name} (of {first})")
            continue
        rate = known.rate(len(x)) or opt["rate"]
        spans, late = known.spans(len(x), rate, file)
        piece, outside = cut(name, highpass(x, opt["highpass"], rate), spans, opt)
        num_windows = len(piece.start) + outside
        for what, count, of in (
            ("lines", torn, len(x) + torn),
            ("events", late, len(spans) + late),
            ("windows", outside, num_windows),
            ("samples", (len(x) - opt["window"]) % stride(opt), len(x)),
        ):
            lost[what] += count
            total[what] += of
        rates.append(rate)
        if len(piece.start):
            pieces.append(piece)
    told: list[str] = []
    for why, own in skipped.items():
        left_out(told, len(own), len(files), "recordings", why, first=own[0])
    for what, why in WHY.items():
        left_out(told, lost[what], total[what], what, why)
    if rates and not 0.9 < np.median(rates) / opt["rate"] < 1.1:
        told.append(
            f"By their total_duration_sec the recordings hold {np.median(rates):.0f} samples a second, not "
            f"the {opt['rate']:g} of `data.rate`: a window is {opt['window'] / np.median(rates):.1f} s."
        )
    if not pieces:
        raise UserError(f"{root} must hold a recording with a labelled window. {' '.join(told)}".rstrip())
    notes += told
    return pieces


def read_samples(file: Path) -> tuple[np.ndarray, int]:
    """Returns the samples of a recording [time, channels] (float32), and how many lines are none.

    A sample is a line of finite numbers between blanks, commas or semicolons, as many as in the first
    such line; what is above that is the header, in any encoding. A single comma between
    semicolons or tabs is a decimal comma, unless the line has decimal points.

    Raises:
        UserError: There is no sample, or too many lines are none.
    """
    rows: list[list[float]] = []
    bad: list[int] = []
    # Numbers and separators are the same in UTF-8 and in the encodings that a header may have.
    with open(file, encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            cells = line.replace("\t", ";").split(";")
            decimal = len(cells) > 1 and "." not in line and all(cell.count(",") < 2 for cell in cells)
            values = line.replace(",", "." if decimal else " ").replace(";", " ").split()
            try:
                sample = [float(value) for value in values]
            except ValueError:
                sample = []
            if sample and all(map(math.isfinite, sample)) and len(sample) == len(rows[0] if rows else sample):
                rows.append(sample)
            elif values and rows:
                bad.append(number)
    if not rows:
        raise UserError(f"{file} must hold lines of numbers, one per sample, but has none.")
    if len(bad) > TORN * len(rows):
        raise UserError(
            f"{file}:{bad[0]} must hold {len(rows[0])} finite numbers as the first sample, but does not, "
            f"nor do {len(bad) - 1} other lines."
        )
    return np.array(rows, np.float32), len(bad)


def highpass(x: np.ndarray, cut_off: float, rate: float) -> np.ndarray:
    """Returns x [time, channels] without what is slower than `cut_off` Hz, or as it is at 0.

    Raises:
        UserError: The rate is too low for that frequency.
    """
    if not cut_off:
        return x
    from scipy.signal import butter, sosfiltfilt

    if cut_off >= rate / 2:
        raise UserError(f"`data.highpass` must be below half the rate, {rate / 2:g} Hz, but got {cut_off:g}.")
    filtered = sosfiltfilt(butter(2, cut_off, "highpass", fs=rate, output="sos"), x, axis=0)
    return np.ascontiguousarray(filtered, np.float32)


def _label_of(file: Path, root: Path, labels: str) -> str:
    """Returns the class of a recording: its sub-folder's name, else the first word for one in its own."""
    folder = file.parent
    if folder != root and not folder.name.endswith("_data"):
        return folder.name
    own = [word.strip() for word in labels.split(",") if word.strip()]
    words = {word: (word,) for word in own} or WORDS
    name = file.stem.lower()
    found = [(name.find(word.lower()), label) for label, spelt in words.items() for word in spelt]
    found = [(place, label) for place, label in found if place >= 0]
    if not found:
        raise UserError(
            f"{file} has no class: put it into a folder named after its class, name one of "
            f"{', '.join(words)} in its file name (or others in `data.labels`), or list it in `data.events`."
        )
    return min(found)[1]
