"""Detects the end of warm-up: the step time no longer falls or rises."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

AGREE, CREEP = 1.05, 0.02
LOOK_BACK = 8
DRIFT = 0.05


def is_steady(blocks: Sequence[float]) -> bool:
    """Returns whether the seconds per step, block after block, have become steady.

    Three blocks within 5% of each other are steady, unless they creep by more than 2% from the
    first to the third. On a noisy machine that may never happen; then eight blocks without a trend
    count: their Theil-Sen slope (the median slope over all pairs, which no single disturbed block
    can move) changes the step by less than 5% over all eight.
    """
    last = blocks[-3:]
    if len(last) == 3 and max(last) <= AGREE * min(last) and abs(last[2] - last[0]) <= CREEP * last[1]:
        return True
    last = blocks[-LOOK_BACK:]
    if len(last) < LOOK_BACK:
        return False
    slope = statistics.median(
        (last[j] - last[i]) / (j - i) for i, j in itertools.combinations(range(LOOK_BACK), 2)
    )
    return abs(slope) * (LOOK_BACK - 1) < DRIFT * statistics.median(last)
