"""What follows from the baseline for the trials after it."""

from __future__ import annotations

import dataclasses

import pytest
from measurements import measurement

from sweeper.core.measurement import Breakdown
from sweeper.sweep.phases.losses import auto_quality_samples


@pytest.mark.parametrize("phase", ["forward_s", "graph_s"])
def test_the_loss_rests_on_what_the_baseline_computes_in_its_seconds(phase: str):
    """A captured step has one phase, which is all of its arithmetic."""
    found = dataclasses.replace(measurement(), breakdown=Breakdown(data_s=0.008, **{phase: 0.002}))
    assert auto_quality_samples(found, 64, 20.0) == 640_000
