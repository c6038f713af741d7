"""Reads CSV and parquet files, in the layouts that people have, into tables and numbers."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sweeper import UserError

from ._reading import left_out, separator, visible

TABLE = re.compile(r"(.+)\.(?:parquet|csv|tsv)(?:\.(?:gz|bz2|xz|zst|zip))?", re.IGNORECASE)
"""A table's file, and its name without the extension."""
SAMPLE_LINES = 50
"""Lines of a CSV file that its layout is told from."""
VALUE = re.compile(r"[-+.]?\d[-+.,:/\s\dTZeE]*")
"""A number, a date or a time of day, which no column is called."""
WHOLE = re.compile(r"[-+]?\d+")
MISSING = ("", "?", "-", "na", "n/a", "#n/a", "nan", "null", "none")


def find_tables(path: Path, notes: list[str]) -> list[Path]:
    """Returns the file `path`, or the tables of that folder by name.

    Tables of its sub-folders are read if the folder has none of its own. Hidden files are no tables.
    Empty ones are left out with a note.

    Raises:
        UserError: There is no table.
    """
    rule = "`data.path` must name a .csv or .parquet file or a folder of them"
    if not path.exists():
        raise UserError(f"{rule}, but {path} does not exist.")
    if not path.is_dir():
        return [path]
    tables = [file for file in visible(path.rglob("*"), path) if TABLE.fullmatch(file.name)]
    own = [file for file in tables if file.parent == path] or tables
    left_out(
        notes, len(tables) - len(own), len(tables), "files", f"in a sub-folder, while {path} has its own"
    )
    full = [file for file in own if file.stat().st_size]
    if not full:
        raise UserError(f"{rule}, but {path} holds none{' that has content' if own else ''}.")
    empty = [file.name for file in own if file not in full]
    left_out(notes, len(empty), len(own), "files", "empty", first=", ".join(empty[:1]))
    return full


def read_table(file: Path, notes: list[str]) -> pd.DataFrame:
    """Returns the table in `file`; its index is the line of each row in a CSV file, else counts from 1.

    Columns have two levels where the file's have. They are called `column_0`, `column_1`, ... where a
    CSV file has no header. A column that only numbers the rows is left out with a note.

    Raises:
        UserError: The file is missing, a folder or unreadable.
    """
    if not file.is_file():
        what = "is a folder" if file.is_dir() else "does not exist"
        raise UserError(f"`data.path` must name a .csv or .parquet file, but {file} {what}.")
    num_headers = 0
    try:
        if ".parquet" in file.name.lower():
            table = pd.read_parquet(file)
        else:
            num_headers, layout = _layout(file)
            table = pd.read_csv(file, low_memory=False, **layout)
            if not num_headers:
                table.columns = pd.Index([f"column_{number}" for number in table.columns])
                notes.append(f"{file.name} has no header: its columns are called column_0, column_1, ...")
    except UnicodeDecodeError:
        raise UserError(
            f"{file} must be UTF-8 text, but {_first_odd_byte(file)} is not; "
            "convert it: iconv -f GB18030 -t UTF-8 (or its own encoding)."
        ) from None
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{file} cannot be read as a table: {reason}") from error
    table = _without_row_numbers(table, notes)
    table.index = pd.RangeIndex(num_headers + 1, num_headers + 1 + len(table))
    return table


def _first_odd_byte(file: Path) -> str:
    content = file.read_bytes()
    try:
        content.decode()
    except UnicodeDecodeError as error:
        row = content.count(b"\n", 0, error.start) + 1
        return f"the byte 0x{content[error.start]:02x} in row {row}"
    return "its content"


def _without_row_numbers(table: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Returns `table` with its index as columns, but without columns that are empty or number the rows.

    Only an index and columns without a name are taken for such.
    """
    index = table.index
    if not isinstance(index, pd.RangeIndex) and (index.name or not pd.api.types.is_integer_dtype(index)):
        table = table.reset_index()
    unnamed = [name for name in table.columns if re.fullmatch(r"(Unnamed: \d+)?", str(name))]
    empty = [name for name in unnamed if table[name].isna().all()]
    numbering = [
        name
        for name in unnamed
        if name == table.columns[0] and pd.api.types.is_integer_dtype(table[name]) and table[name].is_unique
    ]
    notes += [f"Column {str(name)!r} skipped: it numbers the rows." for name in numbering]
    return table.drop(columns=[*empty, *numbering])


def _layout(file: Path) -> tuple[int, dict[str, Any]]:
    """Returns the number of header lines of a CSV file, and the options to read it with."""
    # No text has this separator: pandas unpacks the file and gives whole lines.
    raw = pd.read_csv(
        file,
        sep="\x1f",
        header=None,
        nrows=SAMPLE_LINES,
        dtype=str,
        quoting=csv.QUOTE_NONE,
        na_filter=False,
        encoding_errors="replace",
    )
    lines = raw[0].tolist()
    mark = separator(lines)
    rows = [[cell.strip() for cell in row] for row in csv.reader(lines, delimiter=mark)]
    cells = [cell for row in rows for cell in row]
    commas = any(re.fullmatch(r"[-+]?\d+,\d+", cell) for cell in cells)
    points = any(re.fullmatch(r"[-+]?\d*\.\d+", cell) for cell in cells)
    layout: dict[str, Any] = {"sep": mark, "decimal": "," if commas and not points else "."}
    if any(re.fullmatch(r"[-+]?\d{1,3}(,\d{3})+\.\d+", cell) for cell in cells):
        layout["thousands"] = ","
    width = len(rows[0])
    if len(rows) > 1 and all(len(row) == width + 1 and not row[-1] for row in rows[1:]):
        # pandas would take the first column for an index and shift the names of the others.
        layout |= {"index_col": False, "usecols": range(width)}
    if num_headers := _num_two_level(rows):
        return num_headers, {**layout, "header": [0, 1], "index_col": 0}
    return (0, {**layout, "header": None}) if _is_data(rows) else (1, layout)


def _num_two_level(rows: Sequence[Sequence[str]]) -> int:
    """Returns the number of header lines if the columns have two levels, else 0.

    pandas writes a line with the index's name below them. Without it, one level repeats its names.
    """
    if len(rows) < 3 or not len(rows[0]) == len(rows[1]) == len(rows[2]) > 1:
        return 0
    first, second, third = (row[1:] for row in rows[:3])
    pairs = [pair for pair in zip(first, second, strict=True) if all(pair)]
    if pairs and not any(third) and rows[2][0] and not VALUE.fullmatch(rows[2][0]):
        return 3
    cells = [rows[1][0], *first, *second]
    names = not any(VALUE.fullmatch(cell) or cell.lower() in MISSING[1:] for cell in cells)
    repeats = any(len(set(level)) < len(pairs) for level in zip(*pairs, strict=True))
    return 2 if names and repeats and any(map(VALUE.fullmatch, third)) else 0


def _is_data(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first of `rows` is no header but data.

    It then has values, and no word where rows below have values. Whole numbers alone are names if they
    count up, or if a word is among them.
    """
    first = rows[0]
    values = [cell for cell in first if VALUE.fullmatch(cell)]
    words = [place for place, cell in enumerate(first) if cell.lower() not in MISSING and cell not in values]
    below = [row[place] for row in rows[1:] for place in words if place < len(row)]
    if not values or any(map(VALUE.fullmatch, below)):
        return False
    if not all(map(WHOLE.fullmatch, values)):
        return True
    numbers = list(map(int, values))
    return not words and numbers != list(range(numbers[0], numbers[0] + len(numbers)))


def with_one_level(table: pd.DataFrame) -> pd.DataFrame:
    """Returns `table` with names of one level, without blanks around them: `("Close", "A")` is `Close A`."""
    if table.columns.nlevels == 1:
        names = [str(name).strip() for name in table.columns]
    else:
        names = [" ".join(part for level in name if (part := name_of(level))) for name in table.columns]
    return table.set_axis(names, axis=1)


def name_of(level: object) -> str:
    """Returns a level of a column's name, empty where pandas made it up."""
    return re.sub(r"Unnamed: .*", "", str(level)).strip()


def numbers(table: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Returns the columns of numbers as float64, NaN where there is none; its index is that of `table`.

    A column is one of numbers if at most half of its distinct values are something else: a mark for
    what is missing. Such values and infinite ones are counted in `notes`.
    """
    columns = {}
    for name, column in table.items():
        if pd.api.types.is_datetime64_any_dtype(column) or pd.api.types.is_timedelta64_dtype(column):
            values = pd.Series(np.nan, table.index)
        else:
            values = pd.to_numeric(column, errors="coerce").astype(np.float64)
        values = values.replace([np.inf, -np.inf], np.nan)
        odd = column.notna() & values.isna()
        if odd.any() and 2 * column[odd].astype(str).nunique() > column.astype(str).nunique():
            notes.append(f"Column {name!r} skipped: not numeric.")
            continue
        left_out(
            notes,
            int(odd.sum()),
            len(column),
            "values",
            "no finite number",
            where=f"Column {name!r}",
            first=f"{column[odd].tolist()[0]!r} in row {odd.idxmax()}" if odd.any() else "",
        )
        columns[str(name)] = values
    return pd.DataFrame(columns, index=table.index)


def read_rows(path: Path, target: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Returns x [rows, features] (NaN where missing), y [rows] and notes.

    Args:
        path: A table, or a folder of tables with equal columns, read by name.
        target: The column to predict; empty for the last one. Text columns are skipped with a note.

    Raises:
        UserError: Nothing to read, a file is unreadable, or the target is missing or not numeric.
    """
    notes: list[str] = []
    files = find_tables(path, notes)
    tables = []
    for file in files:
        tables.append(with_one_level(read_table(file, notes)))
        if list(tables[-1].columns) != list(tables[0].columns):
            raise UserError(f"{file} has other columns than {files[0]}; one table needs one set of columns.")
    table = pd.concat(tables)
    target = target or str(table.columns[-1])
    numeric = numbers(table, notes)
    if target not in numeric:
        raise UserError(f"`data.target` must be a numeric column of {path}, but got {target!r}.")
    if numeric.shape[1] < 2:
        raise UserError(f"{path} needs a numeric column besides the target {target!r}, but has none.")
    known = numeric.dropna(subset=[target])
    left_out(notes, len(table) - len(known), len(table), "rows", "no target")
    return known.drop(columns=target).to_numpy(), known[target].to_numpy(), list(dict.fromkeys(notes))
