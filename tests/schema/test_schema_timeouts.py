"""How long trials and their stages may take: what a specification says, and what a job is told."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from sweeper.core.progress import STAGES
from sweeper.schema.sections import ExecutionOptions


def test_limits_by_stage():
    assert ExecutionOptions().stage_timeout_minutes == {}
    assert ExecutionOptions().stall_seconds == 60.0
    limits = {name: 1.5 for name in STAGES if name != "start"}
    assert ExecutionOptions(stage_timeout_minutes=limits, stall_seconds=0).stage_timeout_minutes == limits


@pytest.mark.parametrize(
    "wrong",
    [
        {"stage_timeout_minutes": {"compil": 3}},
        {"stage_timeout_minutes": {"start": 3}},
        {"stage_timeout_minutes": {"compile": 0}},
        {"stage_timeout_minutes": {"compile": "3"}},
        {"stall_seconds": -1},
        {"stall_seconds": float("inf")},
    ],
    ids=str,
)
def test_what_is_no_limit(wrong):
    with pytest.raises(ValidationError):
        ExecutionOptions(**wrong)
