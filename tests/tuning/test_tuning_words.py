"""What a tune says: what it does, what its measurements still allow, and how the training was compared."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

from sweeper.exports.verification import Verification, VerifiedChange
from sweeper.script.changes.change import CLOSE, EXACT
from sweeper.tuning.changes import ChangeValue
from sweeper.tuning.words import bound_lines, offer_lines, plan_line, product_line, stack_lines

CHANGES = [
    ChangeValue(name="loader", value="gathered", kind=EXACT),
    ChangeValue(name="optimizer", value="fused", kind=CLOSE, ceiling=1.25),
]


def test_what_the_measurements_still_allow_is_the_largest_upper_bound():
    assert list(bound_lines(1.031, [])) == ["Nothing that was tried brings more than 4%."]
    assert list(bound_lines(0.98, [])) == ["Nothing that was tried is faster."]
    assert list(bound_lines(0.98, [], has_refused=True)) == ["Nothing that trains the same is faster."]
    both = {"has_refused": True, "has_failed": True}
    assert list(bound_lines(0.98, [], **both)) == ["Nothing that runs and trains the same is faster."]
    (line,) = bound_lines(19.2, [])
    assert line.startswith("Nothing that was tried is known to be faster, but the speeds vary so much")
    assert "a gain of up to 1820% may have gone unnoticed" in line


def test_what_was_not_tried_comes_with_its_ceiling():
    (line,) = bound_lines(None, CHANGES)
    assert line.startswith("Not tried for lack of time: loader gathered, optimizer fused (at most 1.25x). ")


def test_an_offer_has_what_a_race_would_try_and_what_not():
    left = ChangeValue(name="threads", value="one", kind=CLOSE, refused="it has none")
    assert list(offer_lines([*CHANGES, left])) == [
        "  threads one: not tried because it has none",
        "A race would try loader gathered, optimizer fused (at most 1.25x).",
    ]
    assert list(offer_lines([left]))[-1] == "Nothing is left to try."


def of_winner(ratio: float, low: float, high: float, *, has_interval: bool = True) -> Any:
    """Returns a sweep whose winner has a ratio."""
    known = SimpleNamespace(trial=3, ratio=ratio, low=low, high=high, has_interval=has_interval)
    return SimpleNamespace(confirmation=SimpleNamespace(winner=3, ratios=[known]))


def test_two_gains_on_top_of_each_other_multiply_and_their_errors_add_up_as_squares():
    half = math.log(1.1)
    first, second = of_winner(2.0, 2.0 / 1.1, 2.0 * 1.1), of_winner(1.5, 1.5 / 1.1, 1.5 * 1.1)
    low, high = (3.0 * math.exp(way * math.sqrt(2) * half) for way in (-1, 1))
    line = f"Both sweeps together: 3x [{low:.3g}, {high:.3g}] as fast as your script as it is."
    assert product_line(first, second) == line
    assert product_line(first, of_winner(1.5, 0.0, math.inf, has_interval=False)) == ""


def test_the_first_line_of_a_program_tells_what_will_run():
    assert plan_line(5.0).startswith("Your script starts about 25 times in 5 minutes, fewer if it is")
    assert plan_line(0.1).startswith("Your script starts about 2 times in 0.1 minutes, ")


def test_the_winners_changes_together_are_said_to_train_the_same_or_not():
    gathered = VerifiedChange(name="loader", value="gathered", original="original", why="")
    known = Verification(
        kind=CLOSE,
        changes=(gathered,),
        is_nondeterministic=False,
        difference="",
        extent="100 steps",
        code="",
    )
    (line,) = stack_lines(known, CHANGES)
    assert line.startswith("Verified together: the training matches the original up to rounding, over 100")
    (line,) = stack_lines(dataclasses.replace(known, is_nondeterministic=True), CHANGES)
    assert "its losses vary about as much as those of repeats, over 100 steps" in line
    (line,) = stack_lines(dataclasses.replace(known, difference="its losses differ"), CHANGES)
    assert line == "The changes failed verification together: its losses differ. Nothing is exported."
