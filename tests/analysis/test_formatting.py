"""Durations as people read them."""

from __future__ import annotations

import pytest

from sweeper.analysis.formatting import ABSENT, seconds


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ABSENT),
        (0.0853, "85.3 ms"),
        (59.9, "59.9 s"),
        # Less than a minute, but not with three digits.
        (59.97, "1 min 00 s"),
        (245.2, "4 min 05 s"),
        (7200.0, "2 h"),
    ],
)
def test_a_duration_has_the_unit_that_suits_it(value: float | None, text: str):
    assert seconds(value) == text
