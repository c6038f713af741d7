"""A trial's record and the table of metrics over it."""

from __future__ import annotations

import dataclasses
import math

import pytest
from parts import noop

from sweeper.core.config import TrialConfig
from sweeper.core.job import Job
from sweeper.core.measurement import DeviceInfo, Diagnosis, Failure, FailureKind, Quality, Stats
from sweeper.core.metrics import METRICS, round_to
from sweeper.core.record import TrialRecord


class _Deaf:
    def device(self, info):
        pass


def record(**changes) -> TrialRecord:
    config = TrialConfig()
    outcome = noop.run(Job(uid="u", config=config), _Deaf())
    return TrialRecord(number=1, uid="u", stage="search", config=config, **{"outcome": outcome, **changes})


def test_metrics_of_a_measurement_and_of_none():
    assert record().metric("throughput") == 64_000.0
    assert record().metric("gpu_util_pct") is None
    assert record().metric("gpu_mem_peak_fraction") is None
    failed = record(outcome=Failure(kind=FailureKind.OOM, message="m"))
    assert all(failed.metric(name) is None for name in METRICS)
    assert all(record(outcome=None).metric(name) is None for name in METRICS)


def test_absent_and_not_finite_are_none_and_never_0():
    measured = dataclasses.replace(
        record().measurement,
        gpu_mem_peak_gib=6.0,
        device=DeviceInfo(kind="cuda", name="x", memory_gib=24.0),
        telemetry={"gpu_power_w": Stats(mean=100.0, p50=1.0, p95=2.0)},
        throughput=math.nan,
    )
    got = record(outcome=measured, quality=Quality(key="", samples=1, seconds=1, train_loss=1, val_loss=0.5))
    assert got.metric("gpu_mem_peak_fraction") == 0.25
    assert [got.metric(f"gpu_power_w{part}") for part in ("", "_p95")] == [100.0, 2.0]
    assert [got.metric(f"cpu_util_pct{part}") for part in ("", "_p50", "_p95")] == [None] * 3
    assert got.metric("val_loss") == 0.5
    assert got.metric("throughput") is None
    assert got.metric("speed") is None
    assert {metric.direction for metric in METRICS.values()} == {"maximize", "minimize"}


@pytest.mark.parametrize(("busy", "percent"), [(None, None), (0.25e-3, 25.0), (2e-3, 100.0)])
def test_a_gpu_is_busy_for_a_share_of_the_step(busy: float | None, percent: float | None):
    # The step that was made up takes 1 ms.
    diagnosis = Diagnosis(busy_s=busy)
    found = record(outcome=dataclasses.replace(record().measurement, diagnosis=diagnosis))
    assert found.metric("gpu_busy_pct") == pytest.approx(percent)
    assert record().metric("gpu_busy_pct") is None


def test_feasible_needs_a_measurement_and_every_constraint():
    assert record(violations={"val_loss": -0.1, "b": 0.0}).feasible
    assert not record(violations={"val_loss": 0.1}).feasible
    assert not record(outcome=None).feasible
    assert round_to(123456.0, 3) == 123000.0


def test_a_script_trains_where_torch_was_seen_to_whatever_nvml_lists() -> None:
    on_cpu = noop.synthetic(100.0)
    on_gpu = dataclasses.replace(on_cpu, device=DeviceInfo(kind="cuda", name="NVIDIA A10", memory_gib=22.5))
    assert (on_gpu.trains_on_gpu, on_cpu.trains_on_gpu) == (True, False)
    # A container may lack NVML; a machine with a GPU may train on its CPU.
    for measured in (on_cpu, on_gpu):
        for device in ("cuda", "cpu"):
            found = dataclasses.replace(measured, observed={"device": device})
            assert found.trains_on_gpu == (device == "cuda")
