"""Reads a corpus laid out as CE-CSL: label CSVs with glosses, and for each row a clip.

PATH/label/{train,dev,test}.csv      Number,Translator,Chinese Sentences,Gloss,Note
PATH/video/train/A/train-00001/      its frames as images, in the order of their names
PATH/video/train/A/train-00001.npy   or its landmarks [frames, numbers]
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from sweeper import UserError

from .._reading import left_out, separator, visible
from .clips import UNKNOWN, Clip

IMAGES = (".jpg", ".jpeg", ".png")
COLUMNS = ("Number", "Translator", "Gloss")
ENCODINGS = ("utf-8-sig", "gb18030")
IN_BRACKETS = re.compile(r"[(\[{（【［].*?[)\]}）】］]")
PUNCTUATION = re.compile(r"[^\w]+")


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a label file."""

    name: str
    translator: str
    glosses: list[str]


def read_corpus(
    path: Path, val: str, limit: int, crop: int, notes: list[str]
) -> tuple[dict[str, list[Clip]], list[str]]:
    """Returns the clips of train and val, and the glosses of train in the order of their ids.

    Args:
        val: The part to validate on: `dev` or `test`.
        limit: Rows of each part to read, 0 for all.
        crop: Height and width that images are resized to.

    Raises:
        UserError: A label file, an image or an array cannot be used, or a part has no clip at all.
    """
    rows = {
        part: read_labels(path / "label" / f"{file}.csv", notes)[: limit or None]
        for part, file in (("train", "train"), ("val", val))
    }
    names = sorted({gloss for row in rows["train"] for gloss in row.glosses})
    ids = {name: number for number, name in enumerate(names, 1)}
    unknown = {gloss for row in rows["val"] for gloss in row.glosses} - set(ids)
    if unknown:
        notes.append(
            f"{len(unknown)} glosses of {val}.csv are not in train.csv; they count as errors and have no "
            f"part in the loss. The first is {min(unknown)}."
        )
    found = {}
    for part, file in (("train", "train"), ("val", val)):
        clips, missing = [], []
        for row in rows[part]:
            place = path / "video" / file / row.translator / row.name
            clip = _clip(place, [ids.get(gloss, UNKNOWN) for gloss in row.glosses], crop)
            if clip is None:
                missing.append(place)
            else:
                clips.append(clip)
        if not clips:
            raise UserError(
                f"{path / 'video' / file} needs a folder of images (or an .npy) for each row of {file}.csv, "
                f"but has none; {_remedy(rows[part], path / 'video' / file)}"
            )
        first = missing[0] if missing else ""
        left_out(notes, len(missing), len(rows[part]), "rows", "without a clip", where=part, first=first)
        found[part] = clips
    return found, names


def _remedy(rows: Sequence[Row], folder: Path) -> str:
    name = f"{rows[0].translator}/{rows[0].name}" if rows else "A/NAME"
    return f"looked for {folder / name}. A video becomes frames by `ffmpeg -i {name}.mp4 {name}/%05d.jpg`."


def read_labels(file: Path, notes: list[str]) -> list[Row]:
    """Returns the rows of a label file, their glosses cleaned.

    Raises:
        UserError: It cannot be read, lacks a column, or a row is broken or there twice.
    """
    text = _text(file, notes)
    mark = separator(text.splitlines()[:1])
    table = csv.DictReader(io.StringIO(text, newline=""), delimiter=mark)
    if missing := [name for name in COLUMNS if name not in (table.fieldnames or ())]:
        raise UserError(
            f"{file} needs the columns {', '.join(COLUMNS)}, but {', '.join(missing)} is missing."
        )
    rows: dict[str, Row] = {}
    for each in table:
        number, translator, gloss = (each[name] for name in COLUMNS)
        where = f"{file} line {table.line_num}"
        if not number or not translator or gloss is None:
            raise UserError(
                f"{where} needs {', '.join(COLUMNS)}, but got {number!r}, {translator!r}, {gloss!r}."
            )
        if number in rows:
            raise UserError(
                f"{where} must name a clip once, but has {number!r} again; remove one of the rows."
            )
        if "/" in translator + number or ".." in (translator, number):
            raise UserError(f"{where} must name a clip, but got {translator!r} and {number!r}.")
        glosses = [cleaned for part in gloss.split("/") if (cleaned := clean(part))]
        rows[number] = Row(number, translator, glosses)
    if not rows:
        raise UserError(f"{file} needs a row for each clip, but has none.")
    return list(rows.values())


def _text(file: Path, notes: list[str]) -> str:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UserError(f"{file} must be a CSV file with {', '.join(COLUMNS)}: {error.strerror}.") from error
    for encoding in ENCODINGS:
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError:
            continue
        if encoding != ENCODINGS[0]:
            notes.append(f"{file.name} is not UTF-8; it was read as {encoding.upper()}.")
        return text.replace("\0", "")
    raise UserError(f"{file} must be text in UTF-8 or GB18030, but is neither; save it as UTF-8.")


def clean(gloss: str) -> str:
    """Returns a gloss without remarks in brackets, punctuation and the number of its sense (`禁止1`)."""
    word = PUNCTUATION.sub("", IN_BRACKETS.sub("", gloss))
    if word.isdecimal():
        return str(int(word))
    return word[:-1] if word[-1:].isdecimal() and not word[:1].isdecimal() else word


def _clip(place: Path, glosses: list[int], crop: int) -> Clip | None:
    """Returns the clip at `place`, a folder of images or an .npy; None where there is neither."""
    array = place.with_name(f"{place.name}.npy")
    if place.is_dir():
        files = [file for file in visible(place.iterdir(), place) if file.suffix.lower() in IMAGES]
        if files:
            read = partial(read_images, files, crop)
            return Clip(name=str(place), glosses=glosses, length=len(files), read=read)
    if not array.exists():
        return None
    try:
        frames = np.load(array, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{array} cannot be read as an array of numbers: {error}") from error
    if frames.ndim != 2 or not np.issubdtype(frames.dtype, np.number):
        raise UserError(
            f"{array} must hold numbers [frames, landmarks], but got {frames.dtype} {frames.shape}."
        )
    return Clip(name=str(array), glosses=glosses, length=len(frames), read=partial(_of, frames))


def _of(frames: np.ndarray, kept: np.ndarray) -> np.ndarray:
    return np.asarray(frames[kept], dtype=np.float32)


def read_images(files: Sequence[Path], crop: int, kept: np.ndarray) -> np.ndarray:
    """Returns the images `kept` [kept, 3, crop, crop] (uint8, RGB).

    Raises:
        UserError: Pillow is not installed, or an image cannot be read.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise UserError("Frames as images need Pillow, which is not here: `pip install pillow`.") from error

    def image(file: Path) -> np.ndarray:
        try:
            with Image.open(file) as opened:
                return np.asarray(opened.convert("RGB").resize((crop, crop), Image.Resampling.BILINEAR))
        except (OSError, SyntaxError, ValueError) as error:
            raise UserError(f"{file} cannot be read as an image: {error}") from error

    with ThreadPoolExecutor(8) as pool:
        images = list(pool.map(image, [files[i] for i in kept]))
    return np.stack(images).transpose(0, 3, 1, 2)
