"""Finds the time of each row of a table: in one column, in a date and a clock, or spread over columns."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sweeper import UserError

TIMES = ("date", "datetime", "timestamp", "time", "ds")
DATE_UNITS = {"year": ("yr", "yyyy"), "month": ("mo", "mnth", "mm"), "day": ("dy", "dd")}
CLOCK_UNITS = {"hour": ("hr", "hh"), "minute": (), "second": ()}
"""Units that a time may be spread over, with the other names of their columns."""
CLOCK = re.compile(r"\d{1,2}(:\d\d(:\d\d(\.\d+)?)?( ?[ap]m)?|\.\d\d\.\d\d)", re.IGNORECASE)
"""A time of day such as 18:00, 18:00:00, 6:00 PM or 18.00.00."""
SAMPLE = 100
"""Values that tell whether a column holds dates or times of day."""


def read_times(table: pd.DataFrame, file: Path, asked: str = "") -> tuple[pd.Series, list[str]] | None:
    """Returns the time of each row (dates, or float64) and the columns that it is from; None if none has it.

    It is in the column `asked` for, else in the first one called like a time, else in the first one of
    dates, else in columns of the year, the month and the day. Where dates come again, the time of day in
    other columns is added to them.

    Args:
        table: Names of columns are text.
        file: Where it is from, for messages.
        asked: A column; empty to look for one.

    Raises:
        UserError: A value is no time.
    """
    names = list(table.columns)
    clocks = [name for name in names if _is_clock(table[name])]
    called = [name for name in names if name.lower() in TIMES]
    dates = [name for name in called if name not in clocks]
    dates = dates or [name for name in names if name not in clocks and _is_date(table[name])]
    if asked:
        dates, called = [name for name in names if name == asked], []
    spread = _units(names, DATE_UNITS) if not asked else {}
    if dates:
        used = dates[:1]
        times = _parsed(table[used[0]], file)
    elif {"year", "month"} <= set(spread):
        used = list(spread.values())
        parts = pd.DataFrame({"day": 1} | {unit: table[name] for unit, name in spread.items()}, table.index)
        times = pd.to_datetime(parts, errors="coerce")
    elif called:
        return _parsed(table[called[0]], file), called[:1]
    else:
        return None
    known = times.dropna()
    if known.dtype.kind != "M" or known.is_unique or (known != known.dt.normalize()).any():
        return times, used
    units = _units([name for name in names if name not in clocks], CLOCK_UNITS)
    if "hour" in units:
        for unit, name in units.items():
            times = times + pd.to_numeric(table[name], errors="coerce") * pd.Timedelta(f"1 {unit}")
        return times, [*used, *units.values()]
    if clocks:
        clock = _parsed(table[clocks[0]].astype("str").str.replace(".", ":", n=2), file)
        return times + (clock - clock.dt.normalize()), [*used, clocks[0]]
    return times, used


def _units(names: Sequence[str], units: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Returns the column of each unit that has one."""
    return {
        unit: name
        for unit, others in units.items()
        for name in reversed(names)
        if name.lower() in (unit, *others)
    }


def _sample(column: pd.Series) -> pd.Series:
    """Returns some values of a column of text; none of another one."""
    return column[:0] if pd.api.types.is_numeric_dtype(column) else column.dropna()[:SAMPLE].astype("str")


def _is_clock(column: pd.Series) -> bool:
    sample = _sample(column)
    return len(sample) > 0 and all(map(CLOCK.fullmatch, sample))


def _is_date(column: pd.Series) -> bool:
    if pd.api.types.is_numeric_dtype(column):
        return len(column) > 0 and _numbers_or_days(column).dtype.kind == "M"
    sample = _sample(column)
    # A month or a day of the week alone is a date to pandas, too.
    if not len(sample) or (sample.str.count(r"\d") < 3).any() or pd.to_numeric(sample, errors="coerce").any():
        return False
    return bool(_dates(sample).notna().all())


def _parsed(column: pd.Series, file: Path) -> pd.Series:
    """Returns `column` as dates of one time zone (20160701 is one, too), or else as numbers."""
    if pd.api.types.is_numeric_dtype(column):
        return _numbers_or_days(column)
    times = _dates(column)
    wrong = times.isna() & column.notna()
    if wrong.any():
        raise UserError(
            f"{file}: the time {column[wrong].iloc[0]!r} in row {wrong.idxmax()} of {column.name!r} is not a "
            "date in the form of the first one; mend or drop the row."
        )
    return times


def _numbers_or_days(column: pd.Series) -> pd.Series:
    """Returns numbers as float64, NaN for infinite ones, or as dates if they are all such as 20160701."""
    column = column.astype(np.float64).replace([np.inf, -np.inf], np.nan)
    if not (column.between(1900_01_01, 2100_01_01) & (column % 1 == 0)).all():
        return column
    days = pd.to_datetime(column.astype(np.int64).astype(str), format="%Y%m%d", errors="coerce")
    return days if days.notna().all() else column


def _dates(column: pd.Series) -> pd.Series:
    """Returns `column` as dates in the form that most of its values have; NaT where one has another.

    Of 1/2/2020 the first number is the month, unless that leaves out values. Of 1.2.2020 it is the day.
    """
    dotted = column.astype("str").str.match(r"\d{1,2}\.\d").any()
    forms: list[dict[str, Any]] = [{"dayfirst": dotted}, {"dayfirst": not dotted}, {"format": "ISO8601"}]
    best = pd.Series(pd.NaT, column.index)
    for form in forms:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pandas warns if no single format fits
            try:
                times = pd.to_datetime(column, errors="coerce", **form)
            except ValueError:  # several offsets from UTC, as of summer and winter
                times = pd.to_datetime(column, errors="coerce", utc=True, **form)
        if times.notna().sum() > best.notna().sum():
            best = times
        if best.notna().sum() == column.notna().sum():
            break
    return best
