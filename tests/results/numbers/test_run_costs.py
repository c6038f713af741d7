"""A whole run in its parts: seconds, shares, and what the end of each could bring."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from parts.noop import synthetic

from sweeper.core.measurement import Breakdown, Diagnosis, Measurement, RunParts
from sweeper.results.numbers.run_costs import RunCosts, run_costs, steps_per_pass
from sweeper.results.run_lines import changed_run_lines, run_lines

RUN = RunParts(
    startup_s=4.0,
    steps_s=10.0,
    num_steps=100,
    pass_starts_s=1.0,
    num_passes=2,
    evaluations_s=3.0,
    checkpoints_s=2.0,
    num_checkpoints=2,
    pass_batches=50,
)
PARTS = Breakdown(data_s=0.05, forward_s=0.03, backward_s=0.015, optimizer_s=0.005)


def measured(run: RunParts | None = RUN, **observed: Any) -> Measurement:
    diagnosis = Diagnosis(lines={"data": ("train.py:12",), "evaluation": ("train.py:40", "train.py:41")})
    places = {"checkpoint": "train.py:44"}
    return dataclasses.replace(
        synthetic(640.0),
        run=run,
        breakdown=PARTS,
        diagnosis=diagnosis,
        step_ms=100.0,
        observed={"places": places, **observed},
    )


def shares(costs: RunCosts | None) -> dict[str, float]:
    assert costs is not None
    return {part.title: part.share for part in costs.parts}


def test_the_parts_of_what_was_watched_are_shares_of_it() -> None:
    costs = run_costs(measured())
    assert costs is not None
    assert costs.seconds == RUN.seconds == pytest.approx(20.0)
    assert shares(costs) == pytest.approx(
        {
            "waiting for data": 0.25,
            "start-up": 0.2,
            "evaluations": 0.15,
            "checkpoints": 0.1,
            "starts of epochs": 0.05,
        }
    )
    assert costs.parts[0].max_gain == pytest.approx(4 / 3)
    assert [part.place for part in costs.parts] == ["train.py:12", "", "train.py:40", "train.py:44", ""]
    assert costs.has_ends


def test_a_whole_run_has_one_start_and_as_many_epochs_as_are_asked_for() -> None:
    costs = run_costs(measured(), 10)
    assert costs is not None
    # 500 steps, nine starts of epochs after the first, and five times the evaluations and checkpoints.
    assert costs.seconds == pytest.approx(4 + 50 + 9 * 0.5 + 15 + 10)
    assert shares(costs)["waiting for data"] == pytest.approx(25 / costs.seconds)


def test_steps_of_several_batches_are_fewer() -> None:
    assert steps_per_pass(measured(accumulate_steps=5)) == 10
    costs = run_costs(measured(accumulate_steps=5), 10)
    assert costs is not None
    assert costs.seconds == pytest.approx(4 + 10 + 9 * 0.5 + 3 + 2)


@pytest.mark.parametrize(
    "run",
    [
        None,
        dataclasses.replace(RUN, num_steps=0),
        dataclasses.replace(RUN, pass_batches=0),
    ],
)
def test_there_are_no_figures_of_a_whole_run_without_an_epoch(run: RunParts | None) -> None:
    assert run_costs(measured(run), 10) is None
    assert list(run_lines(measured(run), num_epochs=10)) == [
        "How long an epoch is was not seen, so there are no figures of the whole run."
    ]


def test_the_end_of_an_epoch_that_was_not_seen_is_said() -> None:
    run = dataclasses.replace(RUN, num_passes=0, pass_starts_s=0.0, pass_batches=5000)
    lines = list(run_lines(measured(run)))
    assert lines[-1].strip() == (
        "The end of an epoch was not seen: evaluations and checkpoints there come on top."
    )


def test_the_lines_are_in_hours_and_money() -> None:
    lines = list(run_lines(measured(), num_epochs=1000, price=3.6))
    assert lines[0] == "Of 1,000 epochs (2.22 h, 8), apart from the arithmetic:"
    assert " ".join(lines[1].split()) == (
        "waiting for data 31% 41 min 40 s, 2.5 at most 1.45x without train.py:12: `sweeper tune` looks for a"
        " faster loader; else decode once, and read whole batches"
    )
    assert [line.split("  ")[1].strip() for line in lines[1:]] == [
        "waiting for data",
        "evaluations",
        "checkpoints",
        "starts of epochs",
    ]


def test_changes_make_steps_and_starts_of_epochs_faster_and_leave_the_rest() -> None:
    lines = list(changed_run_lines(measured(), 2.0, num_epochs=1000, price=3.6))
    # 100,000 steps of 0.1 s, starts of 0.5 s, evaluations and checkpoints of 2,500 s, a start of 4 s.
    assert lines[0] == "A run of 1,000 epochs takes 2.22 h (8) as it is, 1.46 h (5.25) with the changes."
    assert [" ".join(line.split()[:2]) for line in lines[1:]] == [
        "Beside its",
        "evaluations 29%",
        "checkpoints 19%",
    ]


def test_without_its_length_a_run_has_no_start() -> None:
    (title, *parts) = changed_run_lines(measured(), 2.0)
    assert title == "Beside its epochs, counted as they are without the changes:"
    assert [line.split()[0] for line in parts] == ["evaluations", "checkpoints"]
    assert parts[0].split()[1] == "29%"
    assert not [*changed_run_lines(measured(None), 2.0)]
    assert "no figures" in next(changed_run_lines(measured(None), 2.0, num_epochs=3))
