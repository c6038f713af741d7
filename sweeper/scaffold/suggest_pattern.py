"""Suggests a pattern (`script.patterns`) for output that none of the usual ones matches."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Sequence

MIN_LINES = 3
"""Minimum number of lines that make a form."""
_NUMBER = re.compile(r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d+)?")
_STAMP = re.compile(r"(?:\d{2,4}[-/.]\d{1,2}[-/.]\d{1,4})?[T ]*\d{1,2}:\d{2}:\d{2}(?:[.,]\d+)?")
"""Matches a date or a time of day, which also grows from line to line but counts nothing."""
_CUT = "\0"
_GAP = r"\S+"


def suggest_pattern(lines: Sequence[str]) -> str:
    """Returns a pattern with a group `step` for the count in the commonest form of line; empty if none.

    A count is a whole number that only grows from line to line.
    """
    forms: dict[str, list[list[str]]] = defaultdict(list)
    for line in (_STAMP.sub(_CUT, line) for line in lines):
        forms[_NUMBER.sub("0", line.strip())].append(_NUMBER.findall(line.strip()))
    for form, numbers in sorted(forms.items(), key=lambda item: -len(item[1])):
        columns = list(zip(*numbers, strict=True))
        place = next((i for i, column in enumerate(columns) if _counts(column)), None)
        if len(numbers) >= MIN_LINES and place is not None:
            return _pattern(form, place)
    return ""


def _counts(column: Sequence[str]) -> bool:
    if not all(number.replace(",", "").isdecimal() for number in column):
        return False
    values = [int(number.replace(",", "")) for number in column]
    return all(before < after for before, after in itertools.pairwise(values))


def _pattern(form: str, place: int) -> str:
    """Returns a pattern for the text up to the number at `place`; any number matches the earlier ones.

    The pattern begins after the last date or time in that text.
    """
    before = "0".join(form.split("0")[: place + 1]).rpartition(_CUT)[2]
    text = _GAP.join(re.escape(part).replace(r"\ ", " ") for part in before.split("0"))
    return rf"{text}(?P<step>[\d,]+)"
