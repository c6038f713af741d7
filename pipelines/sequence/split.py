"""Parts a table into training, validation and test rows, in the order of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sweeper import UserError

if TYPE_CHECKING:
    import pandas as pd

PARTS = ("train", "val", "test")
MONTH_DAYS = 30


def split_rows(split: str, times: pd.Index, notes: list[str]) -> dict[str, tuple[int, int]]:
    """Returns the first row of each of `PARTS` and the one after its last; one follows the other.

    Args:
        split: Three shares of the rows, or three numbers of months of 30 days from the first row.
        times: Time of each row, ascending.
        notes: Lines for the person are added here.

    Raises:
        UserError: It is neither, or a part has no rows.
    """
    rule = "`data.split` must be shares such as 0.7/0.15/0.15 or months such as 12/4/4"
    try:
        sizes = [float(word) for word in split.split("/")]
    except ValueError:
        sizes = []
    if len(sizes) != 3 or not all(0 < size < 1e4 for size in sizes) or 1.000001 < sum(sizes) < 3:
        raise UserError(f"{rule}, but got {split!r}.")
    ends = np.cumsum(sizes)
    if ends[-1] < 3:
        stops = np.rint(ends * len(times)).astype(int).tolist()
    elif times.dtype.kind in "iuf":
        raise UserError(f"{rule}, but got {split!r} and times that are not dates: months need dates.")
    else:
        days = (times - times[0]).to_numpy("timedelta64[s]") / np.timedelta64(1, "D")
        stops = np.searchsorted(days, MONTH_DAYS * ends).tolist()
    starts = [0, *stops[:-1]]
    if any(stop <= start for start, stop in zip(starts, stops, strict=True)):
        raise UserError(f"{rule}, each part with rows, but got {split!r} for {times[0]} to {times[-1]}.")
    if stops[-1] < len(times):
        notes.append(f"{len(times) - stops[-1]} rows after the test part of `data.split` are not used.")
    return {part: (start, stop) for part, start, stop in zip(PARTS, starts, stops, strict=True)}
