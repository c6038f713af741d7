"""The card of a trial: its percentages, the mark at the cause, and what was not clean."""

from __future__ import annotations

import dataclasses
import re

import pytest
from measurements import THROUGHPUT, measurement, record_of

from sweeper.core.measurement import Breakdown, Failure, FailureKind
from sweeper.results.trial_card import tree, trial_card

INPUT = {"data": 0.45, "h2d": 0.1, "gap": 0.05, "fits_device": True, "device_samples_s": 2 * THROUGHPUT}


def lines(more: dict | None = None, **shares) -> list[str]:
    return list(trial_card(record_of(measurement(**shares, more=more), loader__kind="rows")))


def test_a_card_says_what_and_where_and_what_next():
    assert lines(**INPUT) == [
        "input-bound: waiting for data takes 45% of the step",
        "  a step of 10 ms",
        "  ├─ waiting for data     45% ██████████████████  ◄ the cause",
        "  ├─ copy to the device   10% ████",
        "  ├─ forward              12% █████",
        "  ├─ backward             20% ████████",
        "  ├─ optimiser             8% ███",
        "  └─ host gap              5% ██",
        "next: `loader.kind: resident`: up to about 2x",
    ]


def percentages(parts: Breakdown) -> dict[str, int]:
    found = {}
    for line in list(tree(parts, ""))[1:]:
        name, percent = re.fullmatch(r"  .─ (.{18}) (.{4})% .*", line).groups()
        found[name.strip()] = int(percent)
    return found


def test_percentages_are_of_the_step_and_little_is_left_out():
    parts = Breakdown(
        data_s=0.0004, h2d_s=0.0006, forward_s=0.03, backward_s=0.05, optimizer_s=0.015, host_gap_s=0.004
    )
    assert percentages(parts) == {
        "copy to the device": 1,
        "forward": 30,
        "backward": 50,
        "optimiser": 15,
        "host gap": 4,
    }
    assert percentages(Breakdown(graph_s=0.9, data_s=0.1)) == {"waiting for data": 10, "captured step": 90}


@pytest.mark.parametrize(
    ("cause", "marked"),
    [
        ("data", "waiting for data"),
        ("h2d", "copy to the device"),
        ("compute", "backward"),
        ("host", "host gap"),
        ("", None),
    ],
)
def test_the_largest_part_of_the_cause_is_marked(cause: str, marked: str | None):
    parts = Breakdown(data_s=0.1, h2d_s=0.2, forward_s=0.2, backward_s=0.3, optimizer_s=0.1, host_gap_s=0.1)
    found = [line for line in tree(parts, cause) if "◄ the cause" in line]
    assert len(found) == (marked is not None)
    assert all(marked in line for line in found)


def test_a_cause_in_the_data_is_shown_where_nothing_waits_for_it():
    # The loader's processes take it in cores.
    parts = Breakdown(data_s=0.001, forward_s=0.999)
    assert [line for line in tree(parts, "data") if "◄" in line] == [
        "  ├─ waiting for data      0%   ◄ the cause"
    ]
    assert len(list(tree(parts, "compute"))) == 2


def test_exactly_one_branch_is_the_last():
    drawn = [line[2:4] for line in tree(measurement(**INPUT).breakdown, "data")][1:]
    assert drawn == ["├─"] * (len(drawn) - 1) + ["└─"]


def test_without_a_next_step_none_is_named():
    assert not any(line.startswith("next:") for line in lines(data=0.15, h2d=0.15, gap=0.3))


@pytest.mark.parametrize(
    ("repeated", "said"),
    [
        (0, None),
        (1, "1 disturbed window was measured again"),
        (2, "2 disturbed windows were measured again"),
    ],
)
def test_windows_that_were_measured_again(repeated: int, said: str | None):
    found = [line for line in lines({"repeated_windows": repeated}, **INPUT) if "disturbed" in line]
    assert found == ([said] if said else [])


def test_what_was_disturbed_to_the_end_comes_before_what_was_repeated():
    found = measurement(**INPUT, more={"repeated_windows": 2})
    first, second = found.windows
    flagged = dataclasses.replace(
        found,
        windows=(
            dataclasses.replace(first, disturbances=("other processes took cores",)),
            dataclasses.replace(
                second, disturbances=("other processes took cores", "the host took cores (steal)")
            ),
        ),
    )
    said = [line for line in trial_card(record_of(flagged)) if "disturbed" in line]
    assert said == [
        "disturbed until the end (other processes took cores, the host took cores (steal)): "
        "do not rely on these figures"
    ]


def test_what_ran_in_place_of_what_was_asked_for():
    found = lines({"effective": {"precision.tf32": "without effect: no GPU"}}, **INPUT)
    assert found[-1] == "`precision.tf32`: without effect: no GPU"


def test_a_failure_and_a_trial_that_runs_have_no_card():
    assert list(trial_card(record_of(Failure(kind=FailureKind.OOM, message="m")))) == []
    assert list(trial_card(record_of(None))) == []
