"""Reads a table with a time column into columns of numbers on an even grid of time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from sweeper import UserError

from .._reading import left_out
from .._tables import numbers, read_table, with_one_level
from .._times import TIMES, read_times


def read_columns(path: Path, time: str, notes: list[str]) -> pd.DataFrame:
    """Returns the numeric columns of `path`, float64, indexed by strictly ascending time.

    Args:
        path: A .csv or .parquet file.
        time: The time column (dates, or numbers in any unit); empty to find it, see `read_times`.
        notes: Lines for the person are added here.

    Raises:
        UserError: The file is unreadable, or its time column is missing or holds something else.
    """
    table = with_one_level(read_table(path, notes))
    read = read_times(table, path, time)
    if read is None:
        some = ", ".join(table.columns[:6]) + ", ..." * (table.shape[1] > 6)
        what = f"the column {time!r} of `data.time`"
        if not time:
            what = f"a time column ({', '.join(TIMES)}), or columns of the year and the month"
        raise UserError(f"{path} needs {what}, but has {some}. `data.time` names another one.")
    times, used = read
    if len(used) > 1:
        notes.append(f"The time of a row is in {', '.join(used)}.")
    frame = numbers(table.drop(columns=used), notes)
    if not frame.shape[1]:
        raise UserError(f"{path} needs a numeric column besides the time {used[0]!r}, but has none.")
    frame = frame.set_axis(pd.Index(times))

    undated = np.asarray(frame.index.isna())
    left_out(notes, int(undated.sum()), len(table), "rows", "without a time")
    frame = frame[~undated]
    if frame.empty:
        raise UserError(f"{path} needs rows with a time in {used[0]!r}, but has none.")
    if not frame.index.is_monotonic_increasing:
        notes.append(f"The rows were put in the order of {used[0]!r}.")
        frame = frame.sort_index(kind="stable")
    again = frame.index.duplicated(keep="last")
    if 2 * again.sum() > len(frame):
        raise UserError(
            f"{path} needs one row per time, but the time of {int(again.sum())} of {len(frame)} rows in "
            f"{', '.join(used)} comes again; put date and time of day into one column, or keep one series."
        )
    left_out(notes, int(again.sum()), len(table), "rows", "their time comes again, and the last one counts")
    return frame[~again]


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
        notes.append(f"{len(starts) - 1} gaps that no window crosses.")
    left_out(notes, int((~whole[place]).sum()), len(frame), "rows", "a value is missing")
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
