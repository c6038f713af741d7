"""How a race stands: ratios so far, and who is not continued."""

from __future__ import annotations

import math

import pytest

from sweeper.race.log import rounds_of_speeds
from sweeper.race.scores import scores


def test_the_baseline_comes_first_and_then_the_fastest():
    rounds = rounds_of_speeds([{0: 1.0, 1: 2.0, 2: 3.0, 3: 0.5}, {0: 1.0, 1: 2.0, 2: 3.0}])
    base, *others = scores(rounds, (0, 1, 2, 3), {0, 1, 2})
    assert (base.arm, base.ratio, base.processes, base.turns) == (0, None, 2, 2)
    assert [score.arm for score in others] == [2, 1, 3]
    assert [score.is_continued for score in others] == [True, True, False]
    first, _, last = others
    assert first.ratio == pytest.approx(3.0)
    assert first.low < 3.0 < first.high
    assert last.processes == 1
    assert math.log(last.high / last.low) > math.log(first.high / first.low), (
        "one process knows less than two"
    )


def test_before_the_first_turn_nothing_is_known():
    assert [score.ratio for score in scores([], (0, 1), {0, 1})] == [None, None]
