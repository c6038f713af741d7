"""Flags without effect: torch reports that the training is the baseline's, so they leave the space."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from parts.noop import synthetic

from sweeper.core.record import TrialRecord
from sweeper.schema import SweepSpec
from sweeper.sweep.phases.dropped_values import idle_values, without_idle

SPEC = SweepSpec.from_dict(
    {
        "name": "flags",
        "command": ["train.py", "{batch_size}", "{precision.amp}", "{loader.pin_memory: true -> --pin}"],
        "space": {
            "batch_size": {"type": "int", "low": 8, "high": 64},
            "precision.amp": {"type": "categorical", "choices": ["fp32", "bf16"]},
            "loader.pin_memory": {"type": "categorical", "choices": [True, False]},
        },
        "baseline": {"batch_size": 16, "precision.amp": "fp32", "loader.pin_memory": False},
    }
)
USUAL = {"precision": "fp32", "pin_memory": False, "batch_size": 16}


def record(number: int, observed: dict[str, Any], **changes: Any) -> TrialRecord:
    config = SPEC.baseline_config().replace({key.replace("__", "."): each for key, each in changes.items()})
    outcome = dataclasses.replace(synthetic(1.0), observed=observed)
    return TrialRecord(number=number, uid="", stage="search", config=config, outcome=outcome)


def test_a_flag_that_changes_nothing_leaves() -> None:
    trials = [record(0, USUAL), record(1, USUAL, precision__amp="bf16", batch_size=32)]
    assert idle_values(trials, SPEC) == {"precision.amp": {"bf16": "the training is the same as with fp32"}}


@pytest.mark.parametrize(
    ("usual", "seen"),
    [
        (USUAL, {**USUAL, "precision": "bf16"}),
        # Nobody knows, in the trial or in the baseline.
        (USUAL, {}),
        ({}, USUAL),
    ],
)
def test_a_flag_that_has_an_effect_or_may_have_one_stays(usual: dict[str, Any], seen: dict[str, Any]) -> None:
    assert not idle_values([record(0, usual), record(1, seen, precision__amp="bf16")], SPEC)


def test_the_baselines_own_values_stay() -> None:
    assert not idle_values([record(0, USUAL), record(1, USUAL)], SPEC)


def test_without_a_measured_baseline_nothing_is_known() -> None:
    assert not idle_values([record(1, USUAL, precision__amp="bf16")], SPEC)


def test_a_value_that_had_an_effect_in_any_trial_stays() -> None:
    """With a small batch the script may choose otherwise."""
    trials = [
        record(0, USUAL),
        record(1, USUAL, precision__amp="bf16"),
        record(2, {**USUAL, "precision": "bf16"}, precision__amp="bf16", batch_size=64),
    ]
    assert not idle_values(trials, SPEC)


def test_every_parameter_keeps_a_choice() -> None:
    """The baseline's own value need not be in the space."""
    spec = SPEC.model_copy(
        update={
            "space": {
                "precision.amp": SPEC.space["precision.amp"].model_copy(update={"choices": ("bf16", "fp16")})
            }
        }
    )
    trials = [
        record(0, USUAL),
        record(1, USUAL, precision__amp="bf16"),
        record(2, USUAL, precision__amp="fp16"),
    ]
    assert idle_values(trials, spec) == {"precision.amp": {"bf16": "the training is the same as with fp32"}}
    failed = {"precision.amp": {"fp16": "no fp16 here"}}
    assert "bf16" not in idle_values(trials, spec, failed).get("precision.amp", {})


def test_two_parameters_for_one_thing_do_not_show_alone() -> None:
    """`--amp --amp-dtype fp16`: the type has no effect while the other flag is off."""
    tree = SPEC.to_dict()
    tree["command"] = [*tree["command"], "{amp: true -> --amp}"]
    tree["space"]["amp"] = {"type": "categorical", "choices": [True, False]}
    tree["baseline"]["amp"] = False
    spec = SweepSpec.from_dict(tree)
    config = spec.baseline_config()
    trials = [
        TrialRecord(
            number=number,
            uid="",
            stage="search",
            config=config.replace(changes),
            outcome=dataclasses.replace(synthetic(1.0), observed=USUAL),
        )
        for number, changes in enumerate([{}, {"precision.amp": "bf16"}])
    ]
    assert not idle_values(trials, spec)


def test_a_trial_with_an_idle_value_counts_unless_it_was_measured_without() -> None:
    trials = [record(0, USUAL), record(1, USUAL, precision__amp="bf16", batch_size=64)]
    assert [each.number for each in without_idle(trials, SPEC)] == [0, 1]
    trials.append(record(2, USUAL, batch_size=64))
    assert [each.number for each in without_idle(trials, SPEC)] == [0, 2]
