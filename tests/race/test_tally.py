"""The interval over processes: on recorded rounds of scripts against themselves, and with wild ones."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from scipy.stats import binom

from sweeper.race.log import BASELINE, Life, Round, Started, Turned, rounds_of_speeds
from sweeper.race.tally import EARLY_LEVEL, LAST_LEVEL, LEVEL, Tally, contenders

RECORDED = Path(__file__).parents[2] / "benchmarks/results/amd-epyc-2-cores/judge-rounds.jsonl"
NOISY = "pictures"


def recorded() -> Mapping[str, Sequence[float]]:
    lines = map(json.loads, RECORDED.read_text(encoding="utf-8").splitlines())
    return {line["script"]: line["logs"] for line in lines}


def groups(count: int, without: str = "") -> list[Tally]:
    """Returns tallies of so many rounds each, which have no round in common."""
    return [
        Tally(logs[at : at + count])
        for script, logs in recorded().items()
        if script != without
        for at in range(0, len(logs) - count + 1, count)
    ]


def is_at_most(count: int, of: int, share: float) -> bool:
    """Returns whether the one-sided 95% bound of a rate does not exclude a share."""
    return bool(binom.sf(count - 1, of, share) > 0.05)


def is_told_apart(tally: Tally, level: float = LEVEL) -> bool:
    low, high = tally.interval(level)
    return low > 0 or high < 0


@pytest.mark.parametrize(("lives", "half_width"), [(1, 0.083), (2, 0.06), (3, 0.05), (4, 0.044)])
def test_equals_are_seldom_told_apart_however_few_processes_there_are(lives: int, half_width: float):
    usual, all_of_them = groups(lives, without=NOISY), groups(lives)
    assert sum(map(len, recorded().values())) == 168
    assert is_at_most(sum(is_told_apart(each) for each in usual), len(usual), 0.05)
    assert is_at_most(sum(is_told_apart(each) for each in all_of_them), len(all_of_them), 0.08)
    assert statistics.fmean(each.half_width() for each in usual) == pytest.approx(half_width, rel=0.1)


def test_many_processes_that_agree_have_a_narrow_interval():
    narrow = Tally([0.001 * (-1) ** number for number in range(20)])
    assert narrow.half_width() < 0.01
    assert Tally([0.0, 0.0]).half_width() > 0.05, "two may agree by chance"


def test_a_single_process_is_as_sure_as_processes_usually_are():
    alone = Tally([0.3])
    assert alone.half_width() == pytest.approx(0.0833, rel=0.01)
    assert alone.half_width(LEVEL) < alone.half_width(LAST_LEVEL) < alone.half_width(EARLY_LEVEL)
    assert Tally([0.3], [0.1**2]).half_width() > 2 * alone.half_width(), "its turns are noisy"


def test_processes_that_follow_each_other_need_more_of_them():
    """Meanwhile the host's speed changes, and other load may slow one by a third."""
    widths = [Tally([0.3] * count, is_in_turns=False).half_width() for count in (1, 2, 3, 4, 8)]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] == pytest.approx(0.25, rel=0.01)
    assert widths[1] == pytest.approx(0.164, rel=0.01)
    assert 0.055 < widths[3] < 0.065
    assert widths[4] < 0.03


def test_processes_that_differ_widen_the_interval():
    assert Tally([0.3, -0.3, 0.2, -0.1]).half_width() > 0.2


def test_a_wild_round_does_not_decide():
    rounds = [0.30, 0.31, 0.29, 0.33, 0.27, 0.30, 0.32, 0.28]
    assert Tally([*rounds[:3], -2.5]).interval()[0] < 0
    assert Tally([*rounds, -2.5]).interval()[0] > 0


def test_wild_rounds_do_not_make_a_difference():
    draw = random.Random(0)

    def round_of_equals() -> float:
        return draw.gauss(0, 0.05) * (20 if draw.random() < 0.1 else 1)

    races = [Tally([round_of_equals() for _ in range(10)]) for _ in range(1000)]
    assert is_at_most(sum(is_told_apart(each, LAST_LEVEL) for each in races), len(races), 0.05)


def life(number: int, arm: int, speeds: Sequence[float]) -> Life:
    turns = [Turned(number, 0.0, 2.0, 10, round(2 * each)) for each in speeds]
    return Life(number, arm, Started(number, arm, 0.0, 1.0), turns, is_over=True)


def test_turns_are_compared_with_those_beside_them():
    both = Round({BASELINE: life(0, 0, [100, 200, 100]), 1: life(1, 1, [200, 400])})
    short = Round({BASELINE: life(2, 0, []), 1: life(3, 1, [100])})
    tally = Tally.of([both, short], 1)
    assert tally.logs == [pytest.approx(math.log(2))]
    assert tally.turn_variances == [pytest.approx(0.0)]


def rounds_of(*speeds: dict[int, float]) -> list[Round]:
    return rounds_of_speeds(speeds)


@pytest.mark.parametrize(
    ("tally", "carries"),
    [
        (Tally([]), False),
        # One turn of each: how much turns differ is not known.
        (Tally([0.5]), False),
        (Tally([0.5], [0.01]), True),
        (Tally([0.5, 0.6]), True),
        # Its usual variance has that of processes that follow each other.
        (Tally([0.5], is_in_turns=False), True),
        (Tally([], is_in_turns=False), False),
    ],
)
def test_a_single_turn_of_each_carries_no_interval(tally: Tally, carries: bool):
    assert tally.carries_interval == carries


def test_arms_that_are_clearly_slower_are_no_contenders():
    assert contenders(rounds_of(*[{0: 1.0, 1: 1.0, 2: 2.0}] * 2), [1, 2]) == [2]
    assert contenders(rounds_of({0: 1.0, 1: 1.9, 2: 2.0}), [1, 2]) == [2, 1]
    assert contenders(rounds_of({0: 1.0, 1: 1.9}, {1: 2.0}), [1, 2]) == [1], "an arm without a turn"
    assert contenders([], [1, 2]) == []


def test_means_over_other_rounds_do_not_bring_back_who_has_dropped_out():
    # Arm 1 is 2% slower than arm 2 in each round that both have; the first was one of a slow baseline.
    rounds = rounds_of(
        *({0: 90.0, 1: 196.0, 2: 200.0} for _ in range(3)), *({0: 100.0, 2: 200.0} for _ in range(5))
    )
    assert Tally.of(rounds, 1).mean > Tally.of(rounds, 2).mean
    assert contenders(rounds, [1, 2])[0] == 2


def test_without_a_round_nothing_is_known():
    assert Tally([]).interval() == (-math.inf, math.inf)
    assert Tally([]).mean == -math.inf
    assert Tally([]).single_half_width() == math.inf
    assert Tally([0.1]).single_half_width() == 0, "the mean of one later round is that round"


@pytest.mark.parametrize("num_rounds", [6, 12])
def test_a_later_process_is_within_what_one_more_adds(num_rounds: int):
    draw, holds, count = random.Random(0), 0, 500
    for _ in range(count):
        tally = Tally([draw.gauss(0, 0.1) for _ in range(num_rounds)])
        # The mean of as many rounds has the error of this one.
        half = math.hypot(math.sqrt(2) * tally.half_width(), tally.single_half_width())
        holds += abs(draw.gauss(0, 0.1) - tally.mean) <= half
    assert 0.93 < holds / count < 0.985
