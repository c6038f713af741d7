"""What a tune without a winner says: what its measurements still allow, and what they leave open."""

from __future__ import annotations

import dataclasses
import sys
from types import SimpleNamespace
from typing import Any

from measurements import THROUGHPUT, measurement, record_of

from sweeper.core.config import Scalar
from sweeper.exports.verification import Verification, VerifiedChange
from sweeper.interventions.change import CHANGES_TRAINING, CLOSE, EXACT
from sweeper.spec import load
from sweeper.tuning.changes import TOO_LITTLE_TIME, ChangeValue
from sweeper.tuning.space import space
from sweeper.tuning.words import duration_line, nothing_lines, plan_line, stack_lines

CHANGES = [
    ChangeValue(name="loader", value="gathered", kind=EXACT),
    ChangeValue(name="optimizer", value="fused", kind=CLOSE),
]
SPEC = load(space([sys.executable, "train.py"], CHANGES, "tune-train", 5.0, env={}))


def lines(*trials: tuple[float, dict[str, Scalar]], kind: str = "baseline", **parts: Any) -> list[str]:
    """Returns the lines of a tune with trials of some speed, as a ratio to the baseline."""
    own = SPEC.baseline_config()
    records = []
    for number, (ratio, made) in enumerate([(1.0, {}), *trials]):
        found = dataclasses.replace(measurement(), throughput=ratio * THROUGHPUT)
        records.append(dataclasses.replace(record_of(found, number), config=own.replace(made)))
    sweep: Any = SimpleNamespace(
        spec=SPEC,
        state="finished",
        summary=SimpleNamespace(records=records),
        decision=SimpleNamespace(kind=kind),
        confirmation=SimpleNamespace(
            ratios=[SimpleNamespace(has_interval=True, **each) for each in parts.get("ratios", [])]
        ),
    )
    return list(nothing_lines(sweep, parts.get("changes", CHANGES), 5.0))


def test_one_trial_at_half_the_speed_brings_nothing_and_leaves_the_rest_open():
    assert lines((0.5, {"loader": "gathered"})) == [
        "Nothing that was tried is faster.",
        "Not tried for lack of time: optimizer (--minutes 10 would do).",
    ]


def test_one_trial_at_the_same_speed_still_allows_what_its_noise_hides():
    (line,) = lines((1.0, {"loader": "gathered", "optimizer": "fused"}))
    percent = int(line.removeprefix("Nothing that was tried brings more than ").removesuffix("%."))
    assert 15 < percent < 45


def test_rounds_say_more_than_the_search():
    ratio = {"trial": 1, "high": 1.031, "rounds": (1.0,) * 4}
    both = (1.0, {"loader": "gathered", "optimizer": "fused"})
    assert lines(both, ratios=[ratio]) == ["Nothing that was tried brings more than 4%."]
    # But nothing of what took no part in them.
    (line,) = lines(both, (1.0, {"loader": "gathered"}), ratios=[ratio])
    assert line != "Nothing that was tried brings more than 4%."


def test_speeds_that_vary_too_much_say_nothing():
    both = (1.0, {"loader": "gathered", "optimizer": "fused"})
    (line,) = lines(both, ratios=[{"trial": 1, "high": 19.2, "rounds": (1.0,) * 4}])
    assert line.startswith("Nothing that was tried is known to be faster, but the speeds vary so much")
    assert "a gain of up to 1820% may have gone unseen" in line


def test_a_change_that_was_left_out_comes_with_the_minutes_that_would_do():
    left = ChangeValue(
        name="compile",
        value="model",
        kind=CLOSE,
        refused=f"{TOO_LITTLE_TIME} to compile; --minutes 10 would do",
    )
    *_, line = lines((0.5, {"loader": "gathered", "optimizer": "fused"}), changes=[*CHANGES, left])
    assert line == "Not tried for lack of time: compile model (--minutes 10 would do)."


def test_what_may_be_faster_is_not_denied():
    assert lines((1.3, {"loader": "gathered", "optimizer": "fused"}), kind="undecided") == [
        "To have it confirmed, run the same command with --minutes 10."
    ]


def test_the_first_line_tells_how_long_it_takes():
    assert duration_line(5.0, 1.0).startswith("This takes about 5 minutes; longer if")
    assert duration_line(1.0, 1.0).endswith("usually take 1 to 2 minutes; the search then takes 1.")


def test_the_first_line_of_a_program_tells_what_will_run():
    assert plan_line(5.0).startswith("About 25 starts of your script in 5 minutes, fewer if it starts slowly")
    assert plan_line(0.1).startswith("About 2 starts of your script in 0.1 minutes, ")


def test_the_winners_changes_together_are_said_to_train_the_same_or_not():
    gathered, larger_batch = (
        VerifiedChange(name=name, value=value, original="original", why="")
        for name, value in (("loader", "gathered"), ("batch_size", "128"))
    )
    known = Verification(
        kind=CLOSE,
        changes=(gathered,),
        is_nondeterministic=False,
        difference="",
        extent="100 steps",
        code="",
    )
    (line,) = stack_lines(known, CHANGES)
    assert line.startswith(
        "Verified together: the training equals the script's own but for rounding, over 100"
    )
    (line,) = stack_lines(dataclasses.replace(known, is_nondeterministic=True), CHANGES)
    assert "losses that differ about as much as its repeats do" in line
    (line,) = stack_lines(dataclasses.replace(known, difference="its losses differ"), CHANGES)
    assert line == "Together, the changes do not train the same: its losses differ. Nothing is exported."
    larger = ChangeValue(name="batch_size", value="128", kind=CHANGES_TRAINING)
    both = dataclasses.replace(known, changes=(gathered, larger_batch))
    assert stack_lines(both, [*CHANGES, larger])[1:] == [
        "Not verifiable, but within the limit on the loss: batch_size 128."
    ]
