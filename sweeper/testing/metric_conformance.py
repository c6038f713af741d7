"""Provides the conformance suite of metrics. Derive a test class and give it a `metric` fixture.

class TestCost(MetricConformance):
    @pytest.fixture
    def metric(self):
        return find_metric("usd_per_epoch")
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import pytest

from sweeper.core.codec import encode
from sweeper.core.config import TrialConfig
from sweeper.core.measurement import (
    Breakdown,
    DeviceInfo,
    Diagnosis,
    Failure,
    FailureKind,
    Measurement,
    Quality,
    Stats,
)
from sweeper.core.metrics import Metric, metric_row, with_added
from sweeper.core.record import TrialRecord
from sweeper.testing.noop import synthetic

A10 = DeviceInfo(
    kind="cuda", name="NVIDIA A10", uuid="GPU-1", memory_gib=22.5, capability="8.6", host_memory_gib=64.0
)
SERIES = ("gpu_util_pct", "gpu_sm_active_pct", "gpu_power_w", "cpu_util_pct", "tree_cpu_pct")


def on_gpu() -> Measurement:
    """Returns a measurement of 1,000 samples/s on a GPU, with every field set."""
    flat = Stats(mean=50.0, p50=49.0, p95=60.0)
    return dataclasses.replace(
        synthetic(1000.0),
        device=A10,
        gpu_mem_peak_gib=6.0,
        host_mem_peak_gib=2.0,
        telemetry=dict.fromkeys(SERIES, flat),
        breakdown=Breakdown(data_s=0.2, forward_s=0.8),
        diagnosis=Diagnosis(busy_s=0.01),
    )


def record(outcome: Any, **changes: Any) -> TrialRecord:
    """Returns a searched trial."""
    return TrialRecord(
        number=3, uid="uid-3", stage="search", config=TrialConfig(), outcome=outcome, **changes
    )


QUALITY = Quality(key="k", samples=1000, seconds=1.0, train_loss=0.6, val_loss=0.5)
WITHOUT_LOSS = {"projected_hours": 2.0, "cost_per_run": 5.0}
DERIVED = {**WITHOUT_LOSS, "time_to_loss_s": 30.0}
MEASURED: Mapping[str, TrialRecord] = {
    "everything": record(on_gpu(), quality=QUALITY, derived=DERIVED),
    "on a CPU": record(synthetic(1000.0), quality=QUALITY),
    "without a loss": record(on_gpu()),
    "screened out": record(dataclasses.replace(synthetic(10.0), screened_out=True, epoch_seconds=0.0)),
}


class MetricConformance:
    """Override the fixture `metric`; pytest collects the rest."""

    def test_its_row_is_whole(self, metric: Metric) -> None:
        """It is found by its name, has a direction, and its digits are worth logging."""
        assert metric_row(metric.name) == metric
        assert metric.direction in ("maximize", "minimize")
        assert 1 <= metric.digits <= 17

    @pytest.mark.parametrize("case", MEASURED)
    def test_it_is_a_finite_number_or_absent(self, metric: Metric, case: str) -> None:
        """A field that a measured trial lacks causes no exception, no NaN and no infinity."""
        value = metric.of(MEASURED[case])
        assert value is None or (math.isfinite(value)), value

    def test_a_trial_with_everything_has_it(self, metric: Metric) -> None:
        """A metric that no trial has can be neither an objective nor a constraint."""
        assert metric.of(MEASURED["everything"]) is not None

    def test_it_rests_on_the_loss_where_it_says_so(self, metric: Metric) -> None:
        """The quality pass runs only for metrics that say so."""
        lacks = dataclasses.replace(
            MEASURED["everything"],
            quality=None,
            derived={n: v for n, v in DERIVED.items() if n != "time_to_loss_s"},
        )
        assert (metric.of(lacks) is None) == metric.rests_on_loss

    def test_it_is_pure(self, metric: Metric) -> None:
        """The same record gives the same value and is not changed."""
        for each in MEASURED.values():
            before = encode(copy.deepcopy(each))
            assert metric.of(each) == metric.of(copy.deepcopy(each))
            assert encode(each) == before

    def test_a_trial_without_a_measurement_has_none(self, metric: Metric) -> None:
        """A trial that failed or still runs has no value."""
        for outcome in (None, Failure(kind=FailureKind.OOM, message="it broke")):
            assert with_added(record(outcome), [metric.name]).metric(metric.name) is None
