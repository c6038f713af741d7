"""Every built-in metric, of trials that have all fields and of those that lack some."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import pytest
from parts.noop import synthetic

from sweeper.core.codec import encode
from sweeper.core.config import TrialConfig
from sweeper.core.measurement import Breakdown, DeviceInfo, Diagnosis, Quality, Stats
from sweeper.core.metrics import LOSS_METRICS, METRICS, metric_row
from sweeper.core.record import TrialRecord, with_added
from sweeper.errors import UserError

SERIES = ("gpu_util_pct", "gpu_sm_active_pct", "gpu_power_w", "cpu_util_pct", "tree_cpu_pct")
ON_GPU = dataclasses.replace(
    synthetic(1000.0),
    device=DeviceInfo(kind="cuda", name="NVIDIA A10", uuid="GPU-1", memory_gib=22.5),
    gpu_mem_peak_gib=6.0,
    host_mem_peak_gib=2.0,
    telemetry=dict.fromkeys(SERIES, Stats(mean=50.0, p50=49.0, p95=60.0)),
    breakdown=Breakdown(data_s=0.2, forward_s=0.8),
    diagnosis=Diagnosis(busy_s=0.01),
)
WITHOUT_LOSS = {"projected_hours": 2.0, "cost_per_run": 5.0}
DERIVED = {**WITHOUT_LOSS, "time_to_loss_s": 30.0}


def record(outcome: Any, **changes: Any) -> TrialRecord:
    """A searched trial."""
    return TrialRecord(number=3, uid="u", stage="search", config=TrialConfig(), outcome=outcome, **changes)


WHOLE = record(
    ON_GPU,
    quality=Quality(key="k", samples=1000, seconds=1.0, train_loss=0.6, val_loss=0.5),
    derived=DERIVED,
)
LACKING = {
    "on a CPU": record(synthetic(1000.0)),
    "screened out": record(dataclasses.replace(synthetic(10.0), is_screened=True, epoch_seconds=0.0)),
}


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_is_a_finite_number_or_absent_and_changes_nothing(name: str):
    metric = metric_row(name)
    assert metric is METRICS[name]
    assert 1 <= metric.digits <= 17
    assert metric.of(WHOLE) is not None
    for trial in (WHOLE, *LACKING.values()):
        before = encode(copy.deepcopy(trial))
        value = metric.of(trial)
        assert value is None or math.isfinite(value)
        assert metric.of(copy.deepcopy(trial)) == value
        assert encode(trial) == before


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_rests_on_the_loss_where_it_says_so(name: str):
    lacks = dataclasses.replace(WHOLE, quality=None, derived=WITHOUT_LOSS)
    assert (METRICS[name].of(lacks) is None) == (name in LOSS_METRICS)


MODULE = """\
from sweeper.core.metrics import Metric

DOUBLE = Metric("samples/s", "maximize", lambda record: 2 * record.measurement.throughput)
ABSENT = Metric("", "minimize", lambda record: None)
BROKEN = Metric("", "minimize", lambda record: 1 / 0)
WORDY = Metric("", "minimize", lambda record: "much")
"""


def test_a_third_partys_is_kept_in_the_record_and_one_that_fails_is_said(tmp_path, monkeypatch):
    (tmp_path / "core_metrics_mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ["throughput", "core_metrics_mine:DOUBLE", "core_metrics_mine:ABSENT"]
    assert with_added(WHOLE, names).added == ["core_metrics_mine:DOUBLE"]
    assert with_added(WHOLE, names).metric("core_metrics_mine:DOUBLE") == 2000.0
    assert with_added(record(None), names) == record(None)
    # Built-in ones are computed from the record, and not stored in it.
    assert "throughput" not in with_added(WHOLE, [*names, "throughput"]).derived
    for name, says in (
        ("core_metrics_mine:BROKEN", "it raised ZeroDivisionError: division by zero."),
        ("core_metrics_mine:WORDY", "it raised ValueError: could not convert string to float: 'much'."),
    ):
        with pytest.raises(UserError) as caught:
            with_added(WHOLE, [name])
        start = f"the metric `{name}` must return a number or None, but for trial 3 {says}"
        assert str(caught.value).startswith(start)
