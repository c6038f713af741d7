"""Reads a KuaiRand folder in chunks: shards, versions, and only the columns and videos that are used."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from sweeper import UserError

from .._reading import left_out
from .tables import (
    USER_NUMERIC,
    USER_TEXT,
    VIDEO_BASIC,
    VIDEO_STATISTIC,
    VIDEO_TEXT,
    Array,
    Log,
    Table,
)

CHUNK_ROWS = 500_000
LOG_COLUMNS = ("user_id", "video_id", "time_ms", "is_click", "play_time_ms")
TABLES = ("user_features", "video_features_basic", "video_features_statistic")
_NAME = re.compile(
    rf"(?P<stem>log_(?:standard|random)_\d+_\d+_to_\d+_\d+|{'|'.join(TABLES)})"
    r"_(?P<version>[a-z0-9]+)(?:_part(?P<part>\d+))?\.csv",
    re.IGNORECASE,
)
Files = Mapping[str, Sequence[Path]]


def read_folder(folder: Path, logs: str, notes: list[str]) -> tuple[Table, Table, Log]:
    """Returns users, videos and the log; of users and videos those that occur in the log.

    Preparing takes some 50 bytes a row of the log and 150 a video that occurs in it, besides one chunk.

    Args:
        folder: Holds KuaiRand's CSV files, or has them in its `data`; shards are `..._partN.csv`.
        logs: `standard`, `random` or `all`.
        notes: Lines for the person are added here.

    Raises:
        UserError: A file or column is missing, or a value cannot be used.
    """
    files = find_files(folder)
    missing = [f"{name}_*.csv" for name in TABLES if name not in files]
    wanted = ("standard", "random") if logs == "all" else (logs,)
    missing += [f"log_{kind}_*.csv" for kind in wanted if not any(f"log_{kind}_" in stem for stem in files)]
    if missing:
        raise UserError(
            f"`data.path` must hold KuaiRand's CSV files, but {folder} lacks {', '.join(missing)}."
        )
    chosen = [file for stem in files if stem.startswith("log_") and stem.split("_")[1] in wanted
              for file in files[stem]]  # fmt: skip
    columns = _read_log(chosen, notes)
    user_ids, user = _rows_of(columns.pop("user_id"))
    video_ids, video = _rows_of(columns.pop("video_id"))
    log = Log(user, video, columns["is_click"], columns["play_time_ms"], columns["time_ms"])

    users = _Filling("user_id", user_ids, len(USER_NUMERIC), USER_TEXT)
    users.read(files["user_features"], USER_NUMERIC, 0, USER_TEXT, notes)
    videos = _Filling("video_id", video_ids, len(VIDEO_BASIC + VIDEO_STATISTIC), VIDEO_TEXT)
    videos.read(files["video_features_basic"], VIDEO_BASIC, 0, VIDEO_TEXT, notes)
    videos.read(files["video_features_statistic"], VIDEO_STATISTIC, len(VIDEO_BASIC), (), notes)
    return users.table(), videos.table(), log


def find_files(folder: Path) -> Files:
    """Returns the CSV files of each of KuaiRand's tables in `folder` or its `data`, shards in order.

    Raises:
        UserError: There are none, or of several versions, or a table is there in part or twice.
    """
    if not folder.is_dir():
        state = "is a file" if folder.exists() else "does not exist"
        raise UserError(f"`data.path` must be a folder with KuaiRand's CSV files, but {folder} {state}.")
    found: list[tuple[str, str, int, Path]] = []
    for place in (folder, folder / "data"):
        for file in sorted(place.iterdir()) if place.is_dir() and not found else ():
            if name := _NAME.fullmatch(file.name):
                found.append((name["stem"].lower(), name["version"].lower(), int(name["part"] or 0), file))
    versions = sorted({version for _, version, _, _ in found})
    if not found:
        raise UserError(
            f"`data.path` must hold KuaiRand's CSV files (log_standard_*_1k.csv, user_features_1k.csv, ...), "
            f"but neither {folder} nor its data folder does."
        )
    if len(versions) > 1:
        raise UserError(
            f"`data.path` must hold one version of KuaiRand, but {found[0][3].parent} has "
            f"{' and '.join(versions)}."
        )
    files: dict[str, list[Path]] = {}
    parts: dict[str, list[int]] = {}
    for stem, _, part, file in sorted(found):
        files.setdefault(stem, []).append(file)
        parts.setdefault(stem, []).append(part)
    for stem, numbers in parts.items():
        if 0 in numbers and len(numbers) > 1:
            raise UserError(
                f"{files[stem][0]} is there whole and in parts; keep one, else its rows count twice."
            )
        first = min(numbers[0], 1)
        if gaps := set(range(first, numbers[-1] + 1)) - set(numbers):
            raise UserError(
                f"{files[stem][-1]} is one of {numbers[-1]} parts, but part {min(gaps)} is not there."
            )
    return files


def _read_log(files: Sequence[Path], notes: list[str]) -> dict[str, Array]:
    pieces: dict[str, list[Array]] = {name: [] for name in LOG_COLUMNS}
    for file in files:
        before = len(pieces["user_id"])
        for chunk in _chunks(file, dict.fromkeys(LOG_COLUMNS, "float64")):
            for name in LOG_COLUMNS:
                values = chunk[name].to_numpy()
                _check(file, chunk.index, name, values, np.isfinite(values), "a number")
                _check(file, chunk.index, name, values, values == np.floor(values), "a whole number")
                if name == "is_click":
                    _check(file, chunk.index, name, values, (values == 0) | (values == 1), "0 or 1")
                elif name == "play_time_ms":
                    _check(file, chunk.index, name, values, values >= 0, "0 or more")
                pieces[name].append(_narrow(values))
        if len(pieces["user_id"]) == before:
            notes.append(f"{file.name} has no rows.")
    if not pieces["user_id"]:
        raise UserError(f"`data` needs rows in {files[0].name}, but there are none.")
    # One column after the other, so that at most one column is in memory twice.
    return {name: np.concatenate(pieces.pop(name)) for name in LOG_COLUMNS}


def _check(file: Path, rows: pd.Index, name: str, values: Array, good: Array, rule: str) -> None:
    if not good.all():
        at = int(np.argmin(good))
        got = "nothing" if np.isnan(values[at]) else f"{values[at]:g}"
        raise UserError(
            f"{file}, line {int(rows[at]) + 2}: `{name}` must be {rule}, but got {got}; mend or drop the row."
        )


def _narrow(values: Array) -> Array:
    whole: Array = values.astype(np.int64)
    for kind in (np.uint8, np.int32):
        if np.iinfo(kind).min <= whole.min() and whole.max() <= np.iinfo(kind).max:
            return whole.astype(kind)
    return whole


def _rows_of(ids: Array) -> tuple[Array, Array]:
    """Returns the distinct ids, ascending, and where among them each is (int32)."""
    known = np.sort(pd.unique(ids))
    return known, np.searchsorted(known, ids).astype(np.int32)


class _Filling:
    """A table whose rows are known by id, filled from files in any order.

    An id of the log without a row in the files keeps unknown features, and is counted in the notes.
    """

    def __init__(self, key: str, ids: Array, num_numeric: int, text: Sequence[str]) -> None:
        self.key, self.ids = key, ids
        self.numeric = np.full((len(ids), num_numeric), np.nan, np.float32)
        self.codes = np.zeros((len(ids), len(text)), np.int32)
        self.known: list[dict[str, int]] = [{} for _ in text]

    def read(
        self, files: Sequence[Path], numeric: Sequence[str], at: int, text: Sequence[str], notes: list[str]
    ) -> None:
        """Fills the features `numeric` (from column `at` on) and the categories `text`."""
        found, rows, foreign = np.zeros(len(self.ids), bool), 0, 0
        kinds = {self.key: "float64", **dict.fromkeys(numeric, "float32"), **dict.fromkeys(text, "str")}
        for file in files:
            for chunk in _chunks(file, kinds):
                ids = chunk[self.key].to_numpy()
                _check(file, chunk.index, self.key, ids, np.isfinite(ids), "a number")
                place = np.searchsorted(self.ids, ids).clip(max=len(self.ids) - 1)
                here = self.ids[place] == ids
                place, chunk = place[here], chunk[here]
                found[place] = True
                rows += len(place)
                foreign += int((~here).sum())
                self.numeric[place, at : at + len(numeric)] = chunk[list(numeric)].to_numpy(np.float32)
                for i, name in enumerate(text):
                    codes, levels = pd.factorize(chunk[name])
                    number = [0, *(self.known[i].setdefault(str(v), len(self.known[i]) + 1) for v in levels)]
                    self.codes[place, i] = np.asarray(number, np.int32)[codes + 1]
        kind = self.key.removesuffix("_id")
        if not found.any():
            raise UserError(f"{files[0]} must describe the {kind}s of the log, but has none of them.")
        num_read, name = rows + foreign, files[0].name
        left_out(notes, foreign, num_read, "rows", f"of a {kind} that is not in the log", where=name)
        again = rows - int(found.sum())
        left_out(
            notes, again, num_read, "rows", f"their {kind} comes again, and the last one counts", where=name
        )
        if not found.all():
            notes.append(
                f"{int((~found).sum())} of {len(found)} {kind}s in the log are not in {files[0].name}: their "
                "features count as unknown."
            )

    def table(self) -> Table:
        """Returns the table, with levels in an order that does not depend on that of the rows."""
        for i, known in enumerate(self.known):
            order = np.zeros(len(known) + 1, np.int32)
            for new, level in enumerate(sorted(known), start=1):
                order[known[level]] = new
            self.codes[:, i] = order[self.codes[:, i]]
        return Table(self.numeric, self.codes, [sorted(known) for known in self.known])


def _chunks(file: Path, kinds: Mapping[str, str]) -> Iterator[pd.DataFrame]:
    """Yields the columns `kinds` of a CSV file, some rows at a time, numbered from 0.

    Raises:
        UserError: A column is missing, a value is of another kind, or the file is no CSV in UTF-8.
    """
    try:
        header = pd.read_csv(file, nrows=0).columns
        if missing := [name for name in kinds if name not in header]:
            verb = "is" if len(missing) == 1 else "are"
            raise UserError(
                f"{file} needs the columns {', '.join(kinds)}, but {', '.join(missing)} {verb} missing."
            )
        # Values of log columns are checked row by row; a cell that is not a number ends up here.
        with pd.read_csv(
            file,
            usecols=list(kinds),
            dtype=dict(kinds),
            chunksize=CHUNK_ROWS,
        ) as reader:
            yield from (chunk for chunk in reader if len(chunk))
    except UserError:
        raise
    except pd.errors.EmptyDataError:
        raise UserError(f"{file} is empty, without even a header; remove it or fetch it again.") from None
    except (ValueError, OSError) as error:
        raise UserError(_reason(file, kinds, error)) from error


def _reason(file: Path, kinds: Mapping[str, str], error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        with open(file, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    line.decode()
                except UnicodeDecodeError:
                    return f"{file}, line {number}: not UTF-8 text; save the file as UTF-8."
    elif isinstance(error, ValueError) and not isinstance(error, pd.errors.ParserError):
        numbers = [name for name, kind in kinds.items() if kind != "str"]
        with pd.read_csv(file, usecols=numbers, dtype="str", chunksize=CHUNK_ROWS) as reader:
            for chunk in reader:
                for name in numbers:
                    wrong = pd.to_numeric(chunk[name], errors="coerce").isna() & chunk[name].notna()
                    if wrong.any():
                        at = int(wrong.to_numpy().argmax())
                        return (
                            f"{file}, line {int(chunk.index[at]) + 2}: `{name}` must be a number, "
                            f"but got {chunk[name].iloc[at]!r}; mend or drop the row."
                        )
    return f"{file} cannot be read as CSV: {(str(error).splitlines() or [type(error).__name__])[0]}."
