"""Decodes images once, and reads their pixels from then on.

A data set that draws a crop or a flip for each row cannot be gathered, but it opens the same files in every
pass. All rows are read once, in child processes, and what Pillow decodes meanwhile is stored. Pixels are
identified by the state of their file, so a file that is written again is decoded again.
"""

from __future__ import annotations

import functools
import hashlib
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from .change import (
    EXACT,
    LOADER,
    NO_EDIT,
    Change,
    ChangeRefusedError,
    ReportCallback,
    begin_passes,
    reason_of,
)
from .facts import has_loader
from .rows.children import result_of_child, results_of_children
from .rows.collating import (
    MAX_CHILDREN,
    MAX_MEMORY_SHARE,
    MAX_SECONDS,
    available_bytes,
    digest_of,
    num_rows_of,
)
from .rows.dataset_file import DatasetFile

FORMATS, MODES = ("JPEG", "PNG"), ("L", "RGB", "RGBA", "CMYK")
"""Formats and modes of the images that are stored: others have a palette, or take no time to decode."""

FIRST_ROWS = 64
"""Number of rows, drawn at random, from which the memory and time of all rows are estimated."""

SPARE = 1.25
"""Factor on the estimated memory, since images differ in size. Those without room are decoded as before."""

MIN_SHARE = 0.1
"""Minimum share of decoding in the time of a row; less is not worth saving."""

if TYPE_CHECKING:
    # Memory, begin and end in it, mode, width and height.
    Place = tuple[Any, int, int, str, tuple[int, int]]


class Images(Change):
    """Decodes the images that a data set opens only once."""

    name = "images"
    choices = ("decoded",)
    kind = EXACT
    why = "images are decoded once, and read as pixels from then on; random crops and flips stay random"
    saves = LOADER
    no_edit = NO_EDIT

    def refusal(self, value: str, facts: Mapping[str, Any]) -> str:
        """Returns why a value is not tried for a training."""
        return "" if has_loader(facts) else "its batches do not come from a DataLoader"

    def apply(self, torch: Any, value: str, report: ReportCallback) -> None:
        """Makes the passes that begin from now on find their images decoded."""
        decoding = _Decoding()
        # These are ids of data sets, since a script may make a loader in each epoch; lists have no weak refs.
        ids: set[int] = set()

        def begin_pass(loader: Any, original: Callable[[Any], Any]) -> Any:
            if id(loader.dataset) not in ids:
                ids.add(id(loader.dataset))
                try:
                    _decode_all(torch, loader, decoding)
                    report(True)
                except Exception as error:
                    report(False, reason_of(error))
            return original(loader)

        begin_passes(torch, begin_pass)


class _Decoding:
    """Stands in for Pillow's own decoding.

    Attributes:
        places: Places of the pixels of images, by key.
        decoded: Called for each image that Pillow decoded, with its key, the image, and the seconds it took.
    """

    def __init__(self) -> None:
        self.places: MutableMapping[str, Place] = {}
        self.decoded: Callable[[str, Any, float], None] | None = None
        self._is_in_place = False

    def begin(self) -> None:
        """Wraps Pillow's `load`, once.

        Raises:
            ChangeRefusedError: Pillow has not been imported.
        """
        module = sys.modules.get("PIL.ImageFile")
        if module is None:
            raise ChangeRefusedError("reading its rows opens no images with Pillow")
        if self._is_in_place:
            return
        self._is_in_place = True
        original = module.ImageFile.load

        @functools.wraps(original)
        def load(picture: Any) -> Any:
            key = _key(picture) if self.places or self.decoded else ""
            if not key:
                return original(picture)
            if (place := self.places.get(key)) is not None:
                return _fill(picture, place)
            began_s = time.perf_counter()
            pixels = original(picture)
            if self.decoded is not None:
                self.decoded(key, picture, time.perf_counter() - began_s)
            return pixels

        module.ImageFile.load = load


def _key(picture: Any) -> str:
    """Returns the key of an image that is not decoded yet; empty if its pixels are not stored."""
    if (
        not picture.tile
        or picture.fp is None
        or picture.format not in FORMATS
        or picture.mode not in MODES
        or getattr(picture, "n_frames", 1) != 1
    ):
        return ""
    if not (source := _source(picture.fp)):
        return ""
    # A JPEG may be decoded at half its size.
    return f"{source} {picture.mode} {picture.size} {picture.tile} {picture.decoderconfig}"


def _source(file: Any) -> str:
    try:
        about = os.fstat(file.fileno())
        return f"{about.st_dev}-{about.st_ino}-{about.st_size}-{about.st_mtime_ns}"
    except (AttributeError, OSError, ValueError):
        # Bytes in memory have no file, and are identified by their content.
        content = getattr(file, "getbuffer", None)
        if content is None:
            return ""
        with content() as view:
            return hashlib.blake2b(view, digest_size=16).hexdigest()


def _fill(picture: Any, place: Place) -> Any:
    """Fills an image with its pixels, as Pillow does at the end of its decoding."""
    module = sys.modules["PIL.Image"]
    memory, begin, end, mode, size = place
    picture.im = module.frombytes(mode, size, memoryview(memory)[begin:end]).im
    picture.tile = []
    picture.readonly = 0
    if picture._exclusive_fp and picture._close_exclusive_fp_after_loading:
        picture.fp.close()
    picture.fp = None
    return module.Image.load(picture)


def _decode_all(torch: Any, loader: Any, decoding: _Decoding) -> None:
    """Decodes all images of a loader's data set in child processes.

    Raises:
        ChangeRefusedError: There are none, or decoding takes too long, too much memory, or too little time
            to save.
    """
    num_rows = num_rows_of(torch, loader)
    decoding.begin()
    kept = DatasetFile(f"images-{key}" if (key := digest_of(torch, loader)) else "")
    # Other ranks of the training wait, and find what this one stores.
    with kept.alone():
        if (contents := kept.read()) is None:
            contents = _decode_anew(torch, loader, decoding, num_rows, kept)
    _enter(decoding, *contents)


def _decode_anew(
    torch: Any, loader: Any, decoding: _Decoding, num_rows: int, kept: DatasetFile
) -> tuple[Any, Any]:
    """Decodes all images; returns the index of their places, and the memory with their pixels.

    Raises:
        ChangeRefusedError: As for `_decode_all`.
    """
    dataset = loader.dataset

    def look() -> tuple[int, float, float]:
        num_bytes, decode_s = 0, 0.0

        def measure(_: str, picture: Any, seconds: float) -> None:
            nonlocal num_bytes, decode_s
            num_bytes += len(picture.tobytes())
            decode_s += seconds

        decoding.decoded = measure
        began_s = time.perf_counter()
        for row in random.Random(0).sample(range(num_rows), first):
            dataset[row]
        return num_bytes, decode_s, time.perf_counter() - began_s

    first = min(num_rows, FIRST_ROWS)
    num_bytes, decode_s, seconds = result_of_child(torch, loader, look, MAX_SECONDS)
    if not num_bytes:
        raise ChangeRefusedError("reading its rows opens no images with Pillow")
    if decode_s < MIN_SHARE * seconds:
        raise ChangeRefusedError(f"decoding takes only {decode_s / seconds:.0%} of the time to read its rows")
    children = min(len(os.sched_getaffinity(0)), MAX_CHILDREN) if loader.num_workers else 1
    if (seconds := seconds / first * num_rows / children) > MAX_SECONDS:
        raise ChangeRefusedError(
            f"decoding the images of its {num_rows:,} rows would take {seconds:.0f} s,"
            f" more than {MAX_SECONDS:.0f}"
        )
    size, room = int(SPARE * num_bytes / first * num_rows), MAX_MEMORY_SHARE * available_bytes()
    if size > room:
        raise ChangeRefusedError(
            f"the decoded images of its {num_rows:,} rows take {size / 2**30:.2f} GiB, more than"
            f" {room / 2**30:.2f} GiB, a quarter of the free memory"
        )
    memory = kept.room(size)
    works = []
    for number in range(children):
        rows, ends = ([whole * at // children for at in (number, number + 1)] for whole in (num_rows, size))
        works.append(_decoder(decoding, dataset, range(*rows), memory, *ends))
    try:
        parts = results_of_children(torch, loader, works, 3 * MAX_SECONDS)
    except ChangeRefusedError:
        kept.drop()
        raise
    about = {"index": {key: place for part in parts for key, place in part}}
    kept.keep(about)
    return about, memory


def _decoder(
    decoding: _Decoding, dataset: Any, rows: range, memory: Any, begin: int, end: int
) -> Callable[[], list[Any]]:
    """Returns a function for a child that reads some rows, and puts the pixels of their images into `memory`.

    The function returns the key of each image and the place of its pixels.
    """

    def decode() -> list[Any]:
        index: dict[str, Any] = {}
        at = begin

        def store(key: str, picture: Any, _: float) -> None:
            nonlocal at
            if key not in index:
                data = picture.tobytes()
                if at + len(data) <= end:
                    memory[at : at + len(data)] = data
                    index[key] = at, at + len(data), picture.mode, picture.size
                    at += len(data)

        decoding.decoded = store
        for row in rows:
            dataset[row]
        return list(index.items())

    return decode


def _enter(decoding: _Decoding, about: Mapping[str, Any], memory: Any) -> None:
    for key, (begin, end, mode, size) in about["index"].items():
        decoding.places[key] = memory, begin, end, mode, tuple(size)
