"""The result of a sweep as its file has it: one level, and the same keys in every version."""

from __future__ import annotations

import json
import math

import pytest

from sweeper.analysis.confirmation import Ratio
from sweeper.sweep.store.result import ConfirmationResult, SweepResult, decode_result, encode_result

RATIO = Ratio(trial=3, ratio=2.0, low=1.5, high=2.5, throughput=20.0, rounds=(19.0, 21.0))
WHOLE = SweepResult(
    reason="the time is up after 8 trials",
    confirmation=ConfirmationResult(
        winner=3,
        confirmed=True,
        ties=(5, 4),
        unfit=(2,),
        ratios=(RATIO,),
        rounds=({3: 19.0, 0: 10.0}, {0: 10.0, 3: 21.0}),
        race_end="the intervals are narrow enough",
        disturbed={0: 0, 3: 1},
    ),
)


def stored(result: SweepResult) -> dict:
    return json.loads(json.dumps(encode_result(result), allow_nan=False))


def test_a_result_is_on_one_level_and_read_back():
    tree = stored(WHOLE)
    assert list(tree) == [
        *("reason", "winner", "confirmed", "tied", "unfit", "ratios", "rounds", "race_end", "disturbed")
    ]
    assert [list(each) for each in tree["rounds"]] == [["3", "0"], ["0", "3"]]
    assert decode_result(tree) == WHOLE


def test_without_rounds_it_has_five_keys():
    result = SweepResult(reason="it was stopped", confirmation=ConfirmationResult(winner=3))
    tree = stored(result)
    assert tree == {
        "reason": "it was stopped",
        "winner": 3,
        "confirmed": False,
        "ratios": [],
        "rounds": [],
    }
    assert decode_result(tree) == result


def test_an_end_without_a_bound_and_keys_of_a_later_version_are_read():
    tree = stored(WHOLE)
    tree["ratios"][0] |= {"high": None, "later": 1}
    assert math.isnan(decode_result({**tree, "later": []}).confirmation.ratios[0].high)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"reason": None}, "`reason` must be text"),
        ({"winner": "x"}, "`winner` does not take 'x'"),
        ({"rounds": [1]}, r"`rounds\[0\]` must be an object"),
        ({"disturbed": {"a": 1}}, "`disturbed`: invalid literal"),
    ],
)
def test_what_does_not_fit_is_named(change, says):
    with pytest.raises(ValueError, match=says):
        decode_result({**stored(WHOLE), **change})
