"""Flags without effect: torch reports that the training is the baseline's, so they leave the space."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sweeper.core.record import TrialRecord
from sweeper.spec import SweepSpec
from sweeper.sweep.phases.idle_values import idle_values
from sweeper.testing.noop import made_up

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
    outcome = dataclasses.replace(made_up(1.0), observed=observed)
    return TrialRecord(number=number, uid="", stage="search", config=config, outcome=outcome)


def test_a_flag_that_changes_nothing_leaves() -> None:
    trials = [record(0, USUAL), record(1, USUAL, precision__amp="bf16", batch_size=32)]
    assert idle_values(trials, SPEC.space) == {
        "precision.amp": {"bf16": "the training is the same as with fp32"}
    }


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
    assert not idle_values([record(0, usual), record(1, seen, precision__amp="bf16")], SPEC.space)


def test_the_baselines_own_values_stay() -> None:
    assert not idle_values([record(0, USUAL), record(1, USUAL)], SPEC.space)


def test_without_a_measured_baseline_nothing_is_known() -> None:
    assert not idle_values([record(1, USUAL, precision__amp="bf16")], SPEC.space)
