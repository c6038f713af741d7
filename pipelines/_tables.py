"""Reads CSV and parquet files into a matrix of numbers and a target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from sweeper import UserError


def read_table(path: Path, target: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Returns x [rows, features] (NaN where missing), y [rows] and notes.

    Args:
        path: A .csv or .parquet file, or a folder of them with equal columns, read by name.
        target: The column to predict; empty for the last one. Text columns are skipped with a note.

    Raises:
        UserError: Nothing to read, a file is unreadable, or the target is missing or not numeric.
    """
    files = sorted(f for f in path.iterdir() if f.suffix in (".csv", ".parquet")) if path.is_dir() else [path]
    if not path.exists() or not files:
        raise UserError(f"`data.path` must name a .csv or .parquet file or a folder of them, but got {path}.")
    tables = []
    for file in files:
        try:
            tables.append(pd.read_parquet(file) if file.suffix == ".parquet" else pd.read_csv(file))
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(f"{file} cannot be read as a table: {reason}") from error
        if list(tables[-1].columns) != list(tables[0].columns):
            raise UserError(f"{file} has other columns than {files[0]}; one table needs one set of columns.")
    table = pd.concat(tables, ignore_index=True)
    target = target or str(table.columns[-1])
    numeric = table.select_dtypes("number").replace([np.inf, -np.inf], np.nan)
    if target not in numeric:
        raise UserError(f"`data.target` must be a numeric column of {path}, but got {target!r}.")
    if numeric.shape[1] < 2:
        raise UserError(f"{path} needs a numeric column besides the target {target!r}, but has none.")
    notes = [f"Column {name!r} skipped: not numeric." for name in table.columns if name not in numeric]
    numeric = numeric.dropna(subset=[target])
    if len(numeric) < len(table):
        notes.append(f"{len(table) - len(numeric)} rows skipped: no target.")
    x = numeric.drop(columns=target).to_numpy(np.float64)
    return x, numeric[target].to_numpy(np.float64), notes
