"""Reads a folder of parquet files, one per instrument, into clean frames in the order of time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from sweeper import UserError

BARS = ("open", "high", "low", "close", "volume")
DATES = ("date", "datetime", "timestamp", "time", "index")


def list_files(folder: Path, limit: int) -> list[Path]:
    """Returns the parquet files in `folder` by name, the first `limit` of them (0: all).

    Raises:
        UserError: The folder is missing, is a file, or holds no parquet file.
    """
    if not folder.exists():
        raise UserError(f"`data.path` must be a folder of parquet files, but {folder} does not exist.")
    if not folder.is_dir():
        raise UserError(
            f"`data.path` must be a folder with one parquet file per instrument, but {folder} is a file."
        )
    files = sorted(folder.glob("*.parquet"), key=lambda file: file.name.lower())
    if not files:
        raise UserError(f"`data.path` must be a folder of parquet files, but {folder} holds no *.parquet.")
    return files[:limit] if limit else files


def read_instruments(files: list[Path], kind: str, notes: list[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yields `(symbol, frame)`: one row per day, ascending, float64, prices above 0.

    Args:
        files: One file per instrument; the symbol is the file's stem in capitals.
        kind: `bars` and `indicators` keep open, high, low, close and volume; `columns` keeps close
            and every other numeric column (ready features); `auto` is `bars` where the first file
            has them all.
        notes: Lines for the person are added here.

    Raises:
        UserError: A file is unreadable or lacks a column.
    """
    wanted: list[str] = []
    for file in files:
        frame = _read(file)
        numeric = [str(name) for name in frame.select_dtypes("number").columns]
        ready = [name for name in numeric if name not in BARS and name not in DATES]
        if kind == "auto":
            kind = "columns" if ready and not set(BARS) <= set(numeric) else "bars"
        if not wanted:
            wanted = ["close", *ready] if kind == "columns" else list(BARS)
            if kind != "columns" and ready:
                notes.append(
                    f"{len(ready)} further columns ({', '.join(ready[:3])}, ...) are not used; "
                    "`data.features: columns` uses them instead of features made from the bars."
                )
            elif kind == "columns" and not ready:
                raise UserError(f"{file} has no numeric column besides its bars; use `data.features: bars`.")
        missing = [name for name in wanted if name not in numeric]
        if missing:
            more = ", ..." if len(wanted) > 6 else ""
            raise UserError(
                f"{file} needs the numeric columns {', '.join(wanted[:6])}{more}, "
                f"but {', '.join(missing[:6])} {'is' if len(missing) == 1 else 'are'} missing."
            )
        symbol = file.stem.removesuffix("_features").upper()
        yield symbol, _clean(symbol, frame[wanted].astype(np.float64), notes)


def _read(file: Path) -> pd.DataFrame:
    try:
        frame = pd.read_parquet(file)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{file} cannot be read as parquet: {reason}") from error
    if not isinstance(frame.index, pd.RangeIndex):
        frame = frame.reset_index()
    frame.columns = pd.Index([str(name).strip().lower() for name in frame.columns])
    date = next((name for name in DATES if name in frame.columns), None)
    if date is None:
        raise UserError(f"{file} needs a date column, named one of {', '.join(DATES[:-1])}.")
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise UserError(f"{file} has the column {twice!r} twice (letter case does not count).")
    days = frame[date]
    if not pd.api.types.is_numeric_dtype(days):
        try:
            days = pd.to_datetime(days)
        except (ValueError, TypeError) as error:
            raise UserError(f"{file}: the column {date!r} holds something that is not a date.") from error
    frame = frame.assign(**{date: days}).drop_duplicates(date, keep="last")
    return frame.sort_values(date, ignore_index=True)


def _clean(symbol: str, frame: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Drops rows without usable prices; a volume that is missing counts as 0."""
    frame = frame.replace([np.inf, -np.inf], np.nan)
    prices = [name for name in ("open", "high", "low", "close") if name in frame]
    usable = (frame[prices] > 0).all(axis=1)
    if "volume" in frame:
        frame["volume"] = frame["volume"].fillna(0.0).clip(lower=0.0)
    if not usable.all():
        notes.append(f"{symbol}: {int((~usable).sum())} rows without a price above 0 were left out.")
    return frame[usable].reset_index(drop=True)
