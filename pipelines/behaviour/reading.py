"""Finds what `data.path` holds, text recordings or ready windows, and reads the latter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sweeper import UserError

from .._reading import visible
from .pieces import Piece, ready
from .recordings import read_recordings


def read(root: Path, opt: Mapping[str, Any], notes: list[str]) -> tuple[list[Piece], int]:
    """Returns the pieces under `root` and the length of their windows.

    Args:
        root: A folder of text recordings, of `*_data` folders of them, of one folder of .npy files a
            class, or with one .npz file; or that file.
        opt: The options of the data.

    Raises:
        UserError: There is nothing that can be read, or a file breaks a rule.
    """
    if not root.exists():
        raise UserError(f"`data.path` must exist, but {root} does not.")
    tables = visible(root.glob("*.npz"), root) if root.is_dir() else [root]
    if root.is_dir():
        folders = sorted(folder for folder in root.glob("*_data") if folder.is_dir())
        if files := _files(folders or [root], opt["pattern"]):
            return read_recordings(root, files, opt, notes), opt["window"]
        if files := _files(folders or [root], "*.npy"):
            return _told(_read_folders(root, files, notes), opt, notes)
    if len(tables) != 1 or tables[0].suffix != ".npz":
        raise UserError(
            f"`data.path` must hold text recordings ({opt['pattern']}), folders of .npy windows or one .npz "
            f"file, but {root} {f'holds {len(tables)} .npz files' if root.is_dir() else 'is another file'}."
        )
    return _told(_read_table(tables[0], notes), opt, notes)


def _files(folders: list[Path], pattern: str) -> list[Path]:
    return sorted({file for folder in folders for file in visible(folder.rglob(pattern), folder)})


def _told(pieces: list[Piece], opt: Mapping[str, Any], notes: list[str]) -> tuple[list[Piece], int]:
    windows = sum(len(piece.start) for piece in pieces)
    window = sum(len(piece.x) for piece in pieces) // windows
    if window != opt["window"]:
        notes.append(f"The windows are ready, {window} samples each: `data.window` cuts nothing.")
    return pieces, window


def _read_folders(root: Path, files: list[Path], notes: list[str]) -> list[Piece]:
    """Reads one folder of .npy files a class; what is before a file's last number names its recording."""
    shape: tuple[int, ...] = ()
    groups: dict[tuple[Path, str], list[np.ndarray]] = {}
    for file in files:
        try:
            x = np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"{file} cannot be read as .npy: {str(error).splitlines()[0]}") from None
        shape = shape or x.shape
        if x.ndim != 2 or x.shape != shape or 0 in shape or x.dtype.kind not in "fiu":
            raise UserError(
                f"Every window must be numbers [channels, time] in the shape of the first, {shape}, but "
                f"{file} holds {x.dtype} {x.shape}."
            )
        if not np.isfinite(x).all():
            raise UserError(f"{file} holds NaN or infinite numbers; mend or remove it.")
        if file.parent == root or file.parent.name.endswith("_data"):
            raise UserError(f"{file} has no class: put it into a folder named after its class.")
        recording = file.stem.rstrip("0123456789").rstrip("_- ")
        groups.setdefault((file.parent, recording), []).append(x.T.astype(np.float32))
    pieces, alone = [], []
    recordings = Counter(folder for folder, _ in groups)
    for (folder, recording), windows in groups.items():
        name, count = f"{folder.name}/{recording}", len(windows)
        if recordings[folder] == 1 and count > 1:
            # By its file names, the class is one recording: its end is held back.
            alone.append(folder.name)
            first = max(1, round(0.8 * count))
            for part, own in (("train", windows[:first]), ("val", windows[first:])):
                pieces.append(ready(name, np.stack(own), [folder.name] * len(own), part))
        else:
            pieces.append(ready(name, np.stack(windows), [folder.name] * count))
    if alone:
        notes.append(
            f"The file names of {', '.join(alone)} tell of one recording each: its last fifth is held back, "
            "and may share samples with what is before it. Names such as RECORDING_0001.npy keep "
            "recordings apart."
        )
    return pieces


def _read_table(file: Path, notes: list[str]) -> list[Piece]:
    """Reads X [windows, channels, time], y [windows] and perhaps split or recording [windows]."""
    try:
        with np.load(file, allow_pickle=False) as stored:
            table = {name: stored[name] for name in ("X", "y", "split", "recording") if name in stored}
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{file} cannot be read as .npz: {str(error).splitlines()[0]}") from None
    if missing := [name for name in ("X", "y") if name not in table]:
        raise UserError(f"{file} must hold X and y, but {' and '.join(missing)} are missing.")
    x, y = table["X"], table["y"]
    if x.ndim != 3 or 0 in x.shape or x.dtype.kind not in "fiu":
        raise UserError(f"X in {file} must be numbers [windows, channels, time], but is {x.dtype} {x.shape}.")
    for name, column in table.items():
        if name != "X" and column.shape != (len(x),):
            raise UserError(f"{name} in {file} must have a value a window, {len(x)}, but is {column.shape}.")
    if y.dtype.kind not in "iuUSb":
        raise UserError(f"y in {file} must be whole numbers or names of classes, but is {y.dtype}.")
    bad = np.flatnonzero(~np.isfinite(x).all(axis=(1, 2)))
    if len(bad):
        raise UserError(
            f"X in {file} holds NaN or infinite numbers in {len(bad)} windows, the first at {bad[0]}."
        )
    windows, label = x.transpose(0, 2, 1), y.astype(str)
    if "split" in table:
        part = np.where(table["split"].astype(str) == "train", "train", "val")
        return [ready(name, windows[part == name], label[part == name], name) for name in ("train", "val")]
    if "recording" not in table:
        notes.append(
            f"{file.name} has no `split` and no `recording`: windows are held back at random, and may share "
            "samples with others."
        )
    group = table.get("recording", np.arange(len(x)))
    return [ready(f"window group {g}", windows[group == g], label[group == g]) for g in np.unique(group)]
