"""Suggests a pattern (`script.patterns`) for output that none of the usual ones fits."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Sequence

MIN_LINES = 3
"""Lines of one form that make it a form."""
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")
_GAP = r"\S+"


def suggest_pattern(lines: Sequence[str]) -> str:
    """Returns a pattern with a group `step` for the count in the commonest form of line; empty if none.

    A count is a whole number that only grows from line to line.
    """
    forms: dict[str, list[list[str]]] = defaultdict(list)
    for line in lines:
        forms[_NUMBER.sub("0", line.strip())].append(_NUMBER.findall(line.strip()))
    for form, numbers in sorted(forms.items(), key=lambda each: -len(each[1])):
        columns = list(zip(*numbers, strict=True))
        place = next((i for i, column in enumerate(columns) if _counts(column)), None)
        if len(numbers) >= MIN_LINES and place is not None:
            return _pattern(form, place)
    return ""


def _counts(column: Sequence[str]) -> bool:
    if not all(each.replace(",", "").isdecimal() for each in column):
        return False
    values = [int(each.replace(",", "")) for each in column]
    return all(before < after for before, after in itertools.pairwise(values))


def _pattern(form: str, place: int) -> str:
    """Returns the text up to the number at `place`, with any number for those before it."""
    parts = form.split("0")[: place + 1]
    before = _GAP.join(re.escape(part).replace(r"\ ", " ") for part in parts)
    return rf"{before}(?P<step>[\d,]+)"
