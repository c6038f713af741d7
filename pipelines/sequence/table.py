"""Reads a table with a time column into columns of numbers on an even grid of time."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd

from sweeper import UserError

TIMES = ("date", "datetime", "timestamp", "time", "ds")


def read_columns(path: Path, time: str, notes: list[str]) -> pd.DataFrame:
    """Returns the numeric columns of `path`, float64, indexed by strictly ascending time.

    Args:
        path: A .csv or .parquet file.
        time: The time column (dates, or numbers in any unit); empty to find it by its name.
        notes: Lines for the person are added here.

    Raises:
        UserError: The file is unreadable, or its time column is missing or holds something else.
    """
    table = _read(path)
    time = _time_column(table, path, time)
    times = _times(table[time], path)
    columns = {}
    for name in table.columns.drop(time):
        numbers = pd.to_numeric(table[name], errors="coerce").astype(np.float64)
        odd = table[name].notna() & numbers.isna()
        if odd.sum() > 0.5 * table[name].notna().sum():
            notes.append(f"Column {name!r} skipped: not numeric.")
            continue
        if odd.any():
            first = int(odd.to_numpy().argmax())
            notes.append(
                f"Column {name!r}: {int(odd.sum())} values that are not numbers count as missing "
                f"(the first is {table[name].iloc[first]!r} in row {first + 2})."
            )
        columns[str(name)] = numbers.to_numpy()
    if not columns:
        raise UserError(f"{path} needs a numeric column besides the time {time!r}, but has none.")
    frame = pd.DataFrame(columns, index=pd.Index(times)).replace([np.inf, -np.inf], np.nan)

    undated = np.asarray(frame.index.isna())
    if undated.any():
        notes.append(f"{undated.sum()} rows without a time were left out.")
        frame = frame[~undated]
    if frame.empty:
        raise UserError(f"{path} needs rows with a time in {time!r}, but has none.")
    if not frame.index.is_monotonic_increasing:
        notes.append(f"The rows were put in the order of {time!r}.")
        frame = frame.sort_index(kind="stable")
    again = frame.index.duplicated(keep="last")
    if again.any():
        notes.append(
            f"{int(again.sum())} rows were left out: their time comes again, and the last one counts."
        )
        frame = frame[~again]
    return frame


def _read(path: Path) -> pd.DataFrame:
    if not path.is_file():
        is_what = "is a folder" if path.is_dir() else "does not exist"
        raise UserError(f"`data.path` must name a .csv or .parquet file, but {path} {is_what}.")
    try:
        table = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path, low_memory=False)
    except UnicodeDecodeError:
        raise UserError(
            f"{path} must be UTF-8 text, but {_first_odd_byte(path)} is not; "
            "convert it: iconv -f GB18030 -t UTF-8 (or its own encoding)."
        ) from None
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path} cannot be read as a table: {reason}") from error
    if isinstance(table.index, pd.DatetimeIndex):
        table = table.reset_index()
    table.columns = pd.Index([str(name).strip() for name in table.columns])
    return table


def _first_odd_byte(path: Path) -> str:
    content = path.read_bytes()
    try:
        content.decode()
    except UnicodeDecodeError as error:
        row = content.count(b"\n", 0, error.start) + 1
        return f"the byte 0x{content[error.start]:02x} in row {row}"
    return "its content"


def _time_column(table: pd.DataFrame, path: Path, asked: str) -> str:
    """Returns the column of times: the one asked for, else the first that is called like one."""
    names = [str(name) for name in table.columns]
    found = [name for name in names if (name == asked if asked else name.lower() in TIMES)]
    if not found:
        some = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
        what = f"the column {asked!r} of `data.time`" if asked else f"a time column ({', '.join(TIMES)})"
        raise UserError(f"{path} needs {what}, but has {some}. `data.time` names another one.")
    return found[0]


def _times(column: pd.Series, path: Path) -> pd.Series:
    """Returns `column` as dates of one time zone (20160701 is one, too), or else as numbers."""
    if pd.api.types.is_numeric_dtype(column):
        if not (column.between(1900_01_01, 2100_01_01) & (column % 1 == 0)).all():
            return column.astype(np.float64)
        days = pd.to_datetime(column.astype(np.int64).astype(str), format="%Y%m%d", errors="coerce")
        return days if days.notna().all() else column.astype(np.float64)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pandas warns if no single format fits; the row is named below
            times = pd.to_datetime(column, errors="coerce")
    except ValueError as error:
        raise UserError(f"{path}: the times in {column.name!r} are of several time zones: {error}") from error
    wrong = (times.isna() & column.notna()).to_numpy()
    if wrong.any():
        row = int(wrong.argmax())
        raise UserError(
            f"{path}: the time {column.iloc[row]!r} in row {row + 2} of {column.name!r} is not a date in the "
            "form of the first one."
        )
    return times


def on_grid(frame: pd.DataFrame, max_fill: int, notes: list[str]) -> tuple[pd.DataFrame, np.ndarray]:
    """Returns complete rows, and for each the number of rows before it without a gap (int64, [rows]).

    The grid's step is the median one. Up to `max_fill` missing values in a row, a missing row's
    among them, take the last value known: unlike an interpolation it knows nothing of later
    rows. What is still missing then is a gap.

    Raises:
        UserError: Not one row is complete.
    """
    elapsed = (frame.index - frame.index[0]) / (pd.Timedelta(1, "s") if _is_dates(frame) else 1.0)
    elapsed = elapsed.to_numpy(np.float64)
    step = np.median(np.diff(elapsed)) if len(elapsed) > 1 else 1.0
    skipped = np.maximum(np.rint(np.diff(elapsed) / step).astype(np.int64) - 1, 0)
    # A gap of any length becomes one row more than can be filled.
    place = np.concatenate([[0], np.cumsum(1 + np.minimum(skipped, max_fill + 1))])
    full = frame.set_axis(place).reindex(np.arange(place[-1] + 1))
    filled = full.apply(_filled, limit=max_fill)
    if made := int(full.isna().sum().sum() - filled.isna().sum().sum()):
        notes.append(f"{made} missing values took the last one known, at most {max_fill} steps old.")
    whole = filled.notna().all(axis=1).to_numpy()
    kept = np.flatnonzero(whole)
    if not len(kept):
        raise UserError(
            "`data` needs rows in which every column has a value, but there is none; leave a column out."
        )
    starts = np.flatnonzero(np.diff(kept, prepend=-2) > 1)
    lengths = np.diff(starts, append=len(kept))
    age = np.arange(len(kept)) - np.repeat(starts, lengths)
    if len(starts) > 1:
        lost = int((~whole[place]).sum())
        notes.append(f"{len(starts) - 1} gaps that no window crosses; {lost} incomplete rows were left out.")
    complete = filled[whole]
    before = np.searchsorted(place, kept, side="right") - 1
    # A filled row keeps the time of the row before it: its exact time is not needed.
    return complete.set_axis(frame.index[before]), age


def _is_dates(frame: pd.DataFrame) -> bool:
    return isinstance(frame.index, pd.DatetimeIndex)


def _filled(column: pd.Series, limit: int) -> pd.Series:
    missing = column.isna()
    run = missing.groupby((~missing).cumsum()).transform("sum")
    return column.ffill().where(~missing | (run <= limit))
