"""Durations and speeds as people read them."""

from __future__ import annotations

import pytest

from sweeper.results.formatting import ABSENT, rate, seconds


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


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ABSENT), (0.456, "0.456/s"), (2.2, "2.2/s"), (64.0, "64/s"), (12_345.6, "12,346/s")],
)
def test_a_slow_speed_has_three_digits(value: float | None, text: str):
    assert rate(value) == text
