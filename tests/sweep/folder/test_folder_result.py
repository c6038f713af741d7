"""The result of a sweep as its file has it: on one level."""

from __future__ import annotations

import json
import math

import pytest

from sweeper.results.numbers.confirmation import Ratio
from sweeper.results.numbers.confirmation_result import ConfirmationResult
from sweeper.sweep.folder.result import SweepResult, decode_result, encode_result

RATIO = Ratio(trial=3, ratio=2.0, low=1.5, high=2.5, throughput=20.0, rounds=(19.0, 21.0))
WHOLE = SweepResult(
    search_end="the time is up after 8 trials",
    confirmation=ConfirmationResult(
        winner=3,
        ties=(5, 4),
        infeasible=(2,),
        ratios=(RATIO,),
        race_end="the intervals are narrow enough",
        disturbances={0: 0, 3: 1},
    ),
)


def stored(result: SweepResult) -> dict:
    return json.loads(json.dumps(encode_result(result), allow_nan=False))


def test_a_result_is_on_one_level_and_read_back():
    tree = stored(WHOLE)
    assert list(tree) == [
        *("search_end", "winner", "ties", "infeasible", "ratios", "race_end", "disturbances"),
        *("time_to_loss", "unreached_loss", "is_provisional"),
    ]
    assert decode_result(tree) == WHOLE


def test_an_end_without_a_bound_and_keys_of_a_later_version_are_read():
    tree = stored(WHOLE)
    tree["ratios"][0] |= {"high": None, "later": 1}
    assert math.isnan(decode_result({**tree, "later": []}).confirmation.ratios[0].high)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"search_end": None}, "`search_end` must be text"),
        ({"winner": "x"}, "`winner` does not take 'x'"),
        ({"ratios": [1]}, r"`ratios\[0\]` must be an object"),
        ({"disturbances": {"a": 1}}, "`disturbances`: invalid literal"),
    ],
)
def test_what_does_not_fit_is_named(change, says):
    with pytest.raises(ValueError, match=says):
        decode_result({**stored(WHOLE), **change})
