"""Objectives and constraints that need something else of the specification."""

from __future__ import annotations

import pytest

from sweeper.errors import UserError
from sweeper.schema import load

NO_HOURS = (
    "`projected_hours` needs the training samples of the production run, but got no `production`."
    " Add `production: {samples: 2.0e9}`."
)
NO_LOSS = (
    "`time_to_loss_s` needs a quality pass, but `measure.quality_samples: 0` turns it off."
    " Use `auto` or a number of samples."
)
NO_PICK = (
    "`confirm.pick: lowest_loss` needs an objective or a constraint on val_loss, but got none."
    " Add one, or use `pick: knee`."
)
SMALL = "space={batch_size: {type: int, low: 1, high: 9}}"
HOURS = "objectives=[{minimize: projected_hours}]"
TIME = "objectives=[{minimize: time_to_loss_s}]"


@pytest.mark.parametrize(
    "overrides",
    [
        [HOURS],
        [TIME],
        ["constraints.projected_hours.max=5"],
        ["constraints.time_to_loss_s.max_ratio_to_baseline=1"],
        ["constraints.time_to_loss_s.max=60", "measure.quality_samples=5000"],
        # It speaks of the loss: sizes of the model may be searched with it.
        ["constraints={time_to_loss_s: {max: 60}}"],
        [TIME, "constraints={}"],
        ["objectives=[{maximize: throughput}, {minimize: val_loss}]", "confirm.pick=lowest_loss"],
        ["objectives=[{maximize: throughput}, {minimize: gpu_mem_peak_gib}]", "confirm.pick=lowest_loss"],
        ["confirm.pick=lowest_loss", "constraints={}", SMALL],
    ],
)
def test_they_are_metrics_like_others(whole, overrides: list[str]):
    assert load(whole, overrides)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ([HOURS, "production=null"], f"--set {HOURS}: {NO_HOURS}"),
        (
            ["constraints.projected_hours.max=5", "production=null"],
            f"--set constraints.projected_hours.max=5: {NO_HOURS}",
        ),
        ([TIME, "measure.quality_samples=0"], f"--set {TIME}: {NO_LOSS}"),
        (
            ["constraints.time_to_loss_s.max=5", "measure.quality_samples=0"],
            f"--set constraints.time_to_loss_s.max=5: {NO_LOSS}",
        ),
        (
            [
                "constraints={}",
                SMALL,
                "objectives=[{maximize: throughput}, {minimize: gpu_mem_peak_gib}]",
                "confirm.pick=lowest_loss",
            ],
            f"--set confirm.pick=lowest_loss: {NO_PICK}",
        ),
    ],
)
def test_without_what_they_rest_on_they_are_refused(whole, overrides: list[str], line: str):
    with pytest.raises(UserError) as caught:
        load(whole, overrides)
    assert str(caught.value) == line


def test_the_place_in_the_file_is_said(whole):
    text = whole.read_text().replace("[{maximize: throughput}]", "[{minimize: projected_hours}]")
    whole.write_text(text.replace("production: {samples: 2.0e9}\n", ""))
    with pytest.raises(UserError) as caught:
        load(whole)
    assert str(caught.value) == f"whole.yaml:16:25: {NO_HOURS}"


def test_time_to_loss_needs_a_loss(whole):
    with pytest.raises(UserError, match=r"`confirm.to_loss: true` needs a quality pass, but"):
        load(whole, ["confirm.to_loss=true", "measure.quality_samples=0"])


def test_changes_of_a_pipeline_are_refused(whole):
    with pytest.raises(UserError, match=r"`workload: changes` needs a `command`, whose changes"):
        load(whole, ["workload=changes"])


def test_a_regret_is_refused_where_it_has_no_effect(whole):
    with pytest.raises(UserError, match=r"`search\.regret: 0\.1` has no effect with `search\.sampler: tpe`"):
        load(whole, ["search.sampler=tpe", "search.regret=0.1"])
    load(whole, ["search.sampler=tpe", "search.regret=null"])
    load(whole, ["search.sampler=climb", "search.regret=0.1"])
