"""What readers of files share: files that count, the separator of lines, the line on what was left out."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

SEPARATORS = (";", "\t", "|", ",")
"""A comma comes last: between semicolons it is a decimal comma."""


def visible(files: Iterable[Path], root: Path) -> list[Path]:
    """Returns those of `files` that are files, by name, without hidden ones such as macOS's `._AAA.csv`."""
    shown = (file for file in files if not any(part[0] == "." for part in file.relative_to(root).parts))
    return sorted(file for file in shown if file.is_file())


def separator(lines: Sequence[str]) -> str:
    """Returns the mark that divides each of `lines` into the same number of cells, or else a comma.

    A line may have one cell more: some programs end rows with a separator, but not the header.
    """
    for mark in SEPARATORS:
        widths = {len(cells) for cells in csv.reader(lines, delimiter=mark)}
        if widths and 1 < min(widths) >= max(widths) - 1:
            return mark
    return ","


def left_out(
    notes: list[str], count: int, total: int, what: str, why: str, *, where: str = "", first: object = ""
) -> None:
    """Adds a line such as `AAA: 3 of 900 rows left out: no price; the first is 7.`, unless `count` is 0.

    Args:
        notes: Lines for the person.
        count: Number that was left out.
        total: Number that there was.
        what: Plural of what they are.
        why: The reason.
        where: Where they are, in front of the line.
        first: The first of them, if that helps to find it.
    """
    if count:
        place, example = f"{where}: " * bool(where), f"; the first is {first}" * bool(first)
        notes.append(f"{place}{count} of {total} {what} left out: {why}{example}.")
