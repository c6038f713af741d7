"""What a tune's log says about each of its changes."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import pytest
from measurements import measurement
from tuning.virtual import Raced, Script, close, exact, tuned

from sweeper.race.log import Verified, rounds_of_speeds
from sweeper.results.numbers.confirmation import Ratio
from sweeper.script.changes.change import EXACT
from sweeper.tuning.changes import ChangeValue
from sweeper.tuning.contests import Contest, RaceState
from sweeper.tuning.gains import (
    ChangeGain,
    GroupGain,
    add_refusals,
    gains_of,
    has_refused,
    largest_gain,
    start_cost,
    untried_changes,
)
from sweeper.tuning.words import ladder_lines, start_line

QUIET = {"process": 0.005, "turn": 0.01}
CHANGES = [
    ChangeValue(name=name, value=value, kind=EXACT)
    for name, value in (("loader", "gathered"), ("pages", "on"), ("malloc", "retain"), ("spin", "short"))
]


def sweep_of(raced: Raced, winner: int | None) -> Any:
    journal = SimpleNamespace(race_events=lambda _: raced.log, rounds=lambda _: [])
    confirmation = SimpleNamespace(winner=winner, infeasible=(), ratios=())
    return SimpleNamespace(journal=journal, confirmation=confirmation)


def test_what_a_race_refuses_has_the_reason_and_what_it_keeps_has_none():
    faults, missing = {"pages=on": "its losses differ after 3 steps"}, {"malloc=retain": "no such library"}
    script = Script({"loader=gathered": 0.5}, faults, missing, **QUIET)
    raced = tuned(script, exact("loader=gathered", "pages=on", "malloc=retain"))
    sweep = sweep_of(raced, raced.state.leader)
    refused = {change.name: change.refused for change in add_refusals(sweep, CHANGES)}
    assert refused == {
        "loader": "",
        "pages": "its losses differ after 3 steps",
        "malloc": "no such library",
        "spin": "",
    }
    assert [change.name for change in untried_changes(sweep, CHANGES)] == ["spin"]
    kept = {gain.name for gain in gains_of(sweep) if gain.is_kept}
    assert kept == {"loader"}
    assert has_refused(sweep)


def test_what_new_processes_have_shown_is_the_ratio_of_an_arm():
    """The table says no other number than the decision."""
    raced = tuned(Script({"loader=gathered": 0.5}, **QUIET), exact("loader=gathered"))
    sweep = sweep_of(raced, raced.state.leader)
    (before,) = gains_of(sweep)
    assert before.stacked is None
    ratio = Ratio(trial=raced.state.leader, ratio=1.7, low=1.5, high=1.9, throughput=1.0, rounds=(1.0,))
    sweep.confirmation.ratios = [ratio]
    (after,) = gains_of(sweep)
    assert (after.alone, after.stacked) == ((1.7, 1.5, 1.9), None)
    assert largest_gain(sweep) == 1.9
    # As it is read from a file, where an infinite end is null.
    sweep.confirmation.ratios = [dataclasses.replace(ratio, low=0.0, high=math.nan)]
    assert ladder_lines(gains_of(sweep), CHANGES)[1].split()[2:4] == ["about", "1.7x"]


@pytest.mark.parametrize(
    ("interval", "why"),
    [
        ((0.9, 0.8, 0.95), "slower"),
        ((1.02, 0.9, 1.2), "no significant gain"),
        # The first race has shown that it pays, and the one at the end could not tell the two apart.
        ((1.2, 1.1, 1.3), "not significantly slower without it"),
    ],
)
def test_what_is_left_out_has_a_reason_that_its_interval_bears(interval, why):
    gain = ChangeGain(name="loader", value="gathered", alone=None, stacked=interval, is_kept=False)
    assert ladder_lines([gain], CHANGES)[-1].endswith(f", dropped: {why}")
    if interval[1] > 1:
        gain = dataclasses.replace(gain, is_unfit=True)
        assert ladder_lines([gain], CHANGES)[-1].endswith(
            ", dropped: with it, the training differs in the end"
        )


def test_what_trains_differently_in_the_end_is_told_apart():
    effects = {"loader=gathered": 0.5, "precision=bf16": 0.4}
    raced = tuned(Script(effects, **QUIET), [*exact("loader=gathered"), *close("precision=bf16")])
    sweep = sweep_of(raced, 1)
    sweep.confirmation.infeasible = (raced.state.leader,)
    assert [(gain.name, gain.is_unfit) for gain in gains_of(sweep)] == [
        ("loader", False),
        ("precision", True),
    ]


def test_the_gain_on_top_of_others_counts_the_race_at_the_end_too():
    effects = {"loader=gathered": 0.5, "malloc=retain": 0.2}
    raced = tuned(Script(effects, **QUIET), exact("loader=gathered") + close("malloc=retain"))
    sweep = sweep_of(raced, raced.state.leader)
    (before,) = (gain.stacked for gain in gains_of(sweep) if gain.name == "malloc")
    with_both, without = (
        next(arm for arm, one in raced.state.contests.items() if one.members == members)
        for members in ({*effects}, {"loader=gathered"})
    )
    rounds = rounds_of_speeds([{0: 1.0, without: 1.6, with_both: 1.6}] * 4)
    sweep.journal.rounds = lambda _: rounds
    (after,) = (gain.stacked for gain in gains_of(sweep) if gain.name == "malloc")
    assert before[0] == pytest.approx(1.22, abs=0.03)
    assert after[0] < 1.1


def test_changes_that_were_only_measured_together_share_a_line():
    script = Script({"loader=gathered": 0.5, "malloc=retain": 0.3, "threads=one": 0.4}, **QUIET)
    raced = tuned(script, [*exact("loader=gathered", "malloc=retain"), *close("threads=one")], seconds=60.0)
    sweep = sweep_of(raced, raced.state.leader)
    gains = {gain.name: gain for gain in gains_of(sweep)}
    assert gains["loader"].together == gains["malloc"].together
    together = gains["loader"].together
    assert together is not None
    assert together.members == {"loader=gathered", "malloc=retain"}
    assert together.stacked is None
    ratio, low, high = together.alone
    assert low < ratio < high
    assert ratio == pytest.approx(math.exp(0.8), rel=0.05)
    assert gains["threads"].together is None
    lines = ladder_lines(list(gains.values()), CHANGES)
    assert [line.split("  ")[0] for line in lines[1:]] == [
        "loader gathered, malloc retain",
        "",
        "threads one",
    ]
    assert lines[2].split()[0] == f"{ratio:.3g}x"


def test_what_joins_together_has_its_gain_on_top_of_the_others():
    script = Script({"loader=gathered": 0.5, "malloc=retain": 0.2, "pages=on": 0.1}, **QUIET)
    candidates = exact("loader=gathered") + exact("malloc=retain", "pages=on", is_of_environment=True)
    raced = tuned(script, candidates, seconds=50.0)
    gains = {gain.name: gain for gain in gains_of(sweep_of(raced, raced.state.leader))}
    assert gains["loader"].alone[0] == pytest.approx(math.exp(0.5), rel=0.05)
    group = gains["pages"].together
    assert group == gains["malloc"].together
    assert (group.members, group.alone) == ({"malloc=retain", "pages=on"}, None)
    assert group.stacked[0] == pytest.approx(math.exp(0.3), rel=0.05)
    lines = ladder_lines(list(gains.values()), CHANGES)
    assert lines[2].startswith("malloc retain, pages on ")
    assert lines[2].split()[4:6] == ["–", f"{group.stacked[0]:.3g}x"]


def test_a_shared_line_says_that_nothing_is_kept_only_where_that_holds_for_all():
    members = frozenset({"loader=gathered", "malloc=retain"})
    for kept, end in ((("loader",), "exact"), ((), "exact, dropped: slower")):
        gains = [
            ChangeGain(
                name=name,
                value=value,
                alone=None,
                stacked=None,
                together=GroupGain(members=members, alone=(0.8, 0.7, 0.9)),
                is_kept=name in kept,
            )
            for name, value in (("malloc", "retain"), ("loader", "gathered"))
        ]
        assert ladder_lines(gains, CHANGES)[-1].endswith(end)


def test_the_table_has_no_interval_that_a_single_turn_cannot_carry():
    alone = ChangeGain(name="spin", value="short", alone=(1.4, 0.0, math.inf), stacked=None, is_kept=True)
    assert "about 1.4x  " in ladder_lines([alone], CHANGES)[-1]


def test_what_leaves_by_a_failure_of_the_rest_or_stays_in_the_winner_is_not_refused():
    contests = {
        1: contest(1, 0, {"loader=gathered", "malloc=retain"}),
        # Without `malloc`, the rest trains differently: that is no fault of `malloc`.
        2: contest(2, 1, {"loader=gathered"}, fault="its losses differ"),
        # Another process of an arm with it had no library.
        3: contest(3, 1, {"loader=gathered", "malloc=retain", "spin=short"}, missing=("malloc: no library",)),
    }
    raced = Raced([], None, None, None)  # type: ignore[arg-type]
    for winner, malloc in ((1, ""), (None, "no library")):
        sweep = sweep_of(raced, winner)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sweeper.tuning.gains._state", lambda _: RaceState([], contests))
            refused = {change.name: change.refused for change in add_refusals(sweep, CHANGES)}
        assert refused == {"loader": "", "pages": "", "malloc": malloc, "spin": ""}


def contest(arm: int, reference: int, requested: set[str], **verified: Any) -> Contest:
    event = Verified(arm, 0.0, **verified)
    return Contest(arm, reference, frozenset(requested), verified=event)


def test_what_a_change_costs_at_the_start_is_known_with_the_samples_that_pay_for_it():
    raced = tuned(
        Script({"loader=gathered": 1.0, "threads=one": 0.3}, **QUIET),
        [*exact("loader=gathered"), *close("threads=one")],
    )
    leader = raced.state.leader
    assert raced.state.members(leader) == {"loader=gathered", "threads=one"}
    sweep = sweep_of(raced, leader)
    plain = measurement()

    def of(start: float, throughput: float) -> Any:
        measured = dataclasses.replace(
            plain, startup_seconds=start, first_step_seconds=0.5, throughput=throughput
        )
        return SimpleNamespace(measurement=measured)

    sweep.table = SimpleNamespace(records={0: of(2.0, 1000.0), 1: of(12.0, 2000.0), leader: of(2.3, 4000.0)})
    cost = start_cost(sweep, leader)
    assert cost is not None
    assert (cost.first, cost.later) == (pytest.approx(10.0), pytest.approx(0.3))
    # Each sample saves 0.75 ms.
    assert cost.samples == pytest.approx(10.0 / 0.00075)
    assert start_line(cost) == (
        "It starts 10 s later than your script the first time (300 ms later from then on), and catches up"
        " after 13,000 samples."
    )
    sweep.table.records[1] = of(2.1, 2000.0)
    assert start_cost(sweep, leader) is None


def test_a_contest_that_was_cut_off_is_no_refusal():
    raced = tuned(Script({"loader=gathered": 0.5}, **QUIET), exact("loader=gathered"), seconds=300.0)
    # The tune is stopped before the second process is warm.
    place = next(n for n, event in enumerate(raced.log) if getattr(event, "members", ()))
    del raced.log[place + 1 :]
    sweep = sweep_of(raced, None)
    assert [change.refused for change in add_refusals(sweep, CHANGES)] == [""] * 4
    assert largest_gain(sweep) is None
    assert not has_refused(sweep)
