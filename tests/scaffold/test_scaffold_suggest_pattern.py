"""A pattern is suggested for lines in a form that no usual pattern fits, and reads their count."""

from __future__ import annotations

import pytest

from sweeper.scaffold.check_script import suggest_pattern
from sweeper.script.run.patterns import Patterns


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("[epoch 3] <{count}> cost=0.{count}1", [10, 20, 30]),
        ("n={count} t=0.5 (gpu 0)", [1, 2, 3, 4]),
        ("2026-01-05 12:00:{count:02d},123 INFO it is {count} now", [1, 2, 3]),
        ("[09:{count:02d}:00] <{count}>", [10, 20, 30]),
        ("2026-01-01 done {count:,} of 90,000 | 0.93", [1000, 2000, 30000]),
    ],
)
def test_the_count_of_the_commonest_form_is_read(line: str, counts: list[int]) -> None:
    lines = ["Loading ...", *(line.format(count=count) for count in counts), "checkpoint saved"]
    pattern = suggest_pattern(lines)
    assert [Patterns([pattern]).read(each).get("step") for each in lines] == [None, *counts, None]


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["done 1", "done 2"],
        # Nothing grows.
        ["cost 0.3", "cost 0.2", "cost 0.1"],
        ["epoch 5", "epoch 4", "epoch 3"],
        ["no numbers here"] * 5,
    ],
)
def test_without_a_count_nothing_is_suggested(lines: list[str]) -> None:
    assert suggest_pattern(lines) == ""
