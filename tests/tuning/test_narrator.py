"""What a tune says while its race runs, and what each change has brought."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import pytest
from measurements import measurement
from tuning.virtual import Raced, Script, close, exact, tuned

from sweeper.core.measurement import Breakdown
from sweeper.race.log import Added
from sweeper.race.tally import Tally
from sweeper.script.changes.change import CLOSE, DRAWS, EXACT
from sweeper.script.run.warm import WarmProcess
from sweeper.tuning.changes import NEEDS_PERMISSION, ChangeValue
from sweeper.tuning.contests import middle
from sweeper.tuning.gains import gains_of, has_failed, has_refused, largest_gain, untried_changes
from sweeper.tuning.narrator import Narrator, not_tried_lines
from sweeper.tuning.race import Course

PARTS = Breakdown(data_s=0.5, forward_s=0.4, optimizer_s=0.1)
WARM = WarmProcess(measurement=dataclasses.replace(measurement(), breakdown=PARTS))
CHANGES = [
    ChangeValue(name="loader", value="gathered", kind=EXACT),
    ChangeValue(name="threads", value="one", kind=CLOSE, ceiling=1.3),
    ChangeValue(name="tf32", value="on", kind=CLOSE, refused="it does not train on a GPU"),
]


@pytest.fixture
def raced() -> Raced:
    effects = {"loader=gathered": 0.5, "optimizer=fused": -0.3, "malloc=retain": 0.0}
    script = Script(effects, faults={"mine=on": "its losses differ after 3 steps"}, process=0.005, turn=0.01)
    return tuned(script, exact("loader=gathered", "malloc=retain") + close("optimizer=fused", "mine=on"))


def told(raced: Raced) -> list[str]:
    """Returns the lines of a tune, said as its log grows."""
    lines: list[str] = []
    narrator = Narrator(lines.append, lambda: 14.2)
    for length in range(len(raced.log) + 1):
        log: Any = raced.log[:length]
        narrator.follow(Course(warm=WARM, changes=CHANGES, policy=raced.policy, log=log))
    return lines


def test_each_finding_is_said_once_as_soon_as_it_is_known(raced):
    lines = told(raced)
    own, skipped, first, stack, *_ = lines
    assert own.startswith("  14 s  Your script: ")
    assert own.endswith("50% of a step waits for data; 10% of a step goes to the optimizer.")
    assert skipped == "  14 s  Not tried because they cannot help here: tf32."
    assert first.startswith("  14 s  So far about 1.6")
    assert first.endswith("equal in every bit over 60 steps: loader gathered, malloc retain.")
    assert stack.startswith("  14 s  loader gathered, malloc retain: 1.6")
    assert len(lines) == len({*lines}) == 3 + len(raced.arms)


def test_what_is_not_kept_has_its_reason(raced):
    lines = [line[8:] for line in told(raced)]
    assert "mine on: left out because its losses differ after 3 steps." in lines
    assert any(line.startswith("optimizer fused: 0.7") and line.endswith("not continued.") for line in lines)
    (line,) = (line for line in lines if line.startswith("Without malloc retain: no slower ("))
    assert line.endswith(", so it is left out.")


def test_the_ratio_that_is_said_is_the_one_that_decides():
    """The mean of its turns may lie on the other side, where one holds the end of an epoch."""
    apart = 0
    for seed in range(20):
        race = tuned(Script({"a=on": 0.2}, epoch_ends=0.3, process=0.0, turn=0.01), close("a=on"), seed=seed)
        (contest,) = race.state.contests.values()
        median, mean = middle(race.state.rounds, contest), Tally.of(race.state.rounds, contest.arm).mean
        said = next(line for line in told(race) if " a on: " in line and "So far" not in line)
        number = float(said.partition("a on: ")[2].partition("x")[0])
        assert number == pytest.approx(math.exp(median), rel=0.01)
        apart += abs(median - mean) > 0.1
    assert apart > 3


def test_nothing_is_said_of_changes_that_are_tried():
    assert list(not_tried_lines(CHANGES[:2])) == []


def test_a_change_that_may_be_allowed_is_not_said_to_be_of_no_help():
    workers = ChangeValue(name="workers", value="cores", kind=DRAWS, refused=NEEDS_PERMISSION)
    assert list(not_tried_lines([*CHANGES, workers])) == [
        "Not tried because they cannot help here: tf32.",
        "workers cores: not tried because its rows would draw other random numbers; --allow-other-draws"
        " permits that.",
    ]


@pytest.fixture
def sweep(raced: Raced) -> Any:
    winner = next(arm for arm, one in raced.state.contests.items() if one.members == {"loader=gathered"})
    journal = SimpleNamespace(race_events=lambda _: raced.log, rounds=lambda _: [])
    confirmation = SimpleNamespace(winner=winner, infeasible=(), ratios=[])
    return SimpleNamespace(journal=journal, confirmation=confirmation)


def test_the_gain_of_each_change_is_that_of_arms_with_and_without_it(sweep):
    gains = {gain.name: gain for gain in gains_of(sweep)}
    assert gains.keys() == {"loader", "malloc", "optimizer"}
    assert gains["malloc"].stacked[0] == pytest.approx(1.0, abs=0.03)
    assert gains["optimizer"].stacked[0] == pytest.approx(0.74, abs=0.03)
    assert gains["loader"].alone[0] == pytest.approx(1.65, abs=0.05)
    assert [gain.is_kept for gain in gains.values()] == [name == "loader" for name in gains]


def test_what_the_measurements_allow_and_what_was_not_tried_is_known(sweep):
    assert largest_gain(sweep) == pytest.approx(1.65 * 1.09, rel=0.05)
    assert [str(change) for change in untried_changes(sweep, CHANGES)] == ["threads one"]


def test_what_was_started_and_cut_off_was_not_tried(sweep, raced):
    added = next(place for place, event in enumerate(raced.log) if isinstance(event, Added))
    sweep.journal.race_events = lambda _: raced.log[: added + 2]
    assert [str(change) for change in untried_changes(sweep, CHANGES)] == ["loader gathered", "threads one"]
    assert largest_gain(sweep) is None


def test_what_has_failed_was_tried_but_not_measured(sweep):
    log = tuned(Script(failing={"loader=gathered": 5}), exact("loader=gathered")).log
    sweep.journal.race_events = lambda _: log
    assert [str(change) for change in untried_changes(sweep, CHANGES)] == ["threads one"]
    assert has_failed(sweep)
    assert not has_refused(sweep)
