"""Atomic files, the job folder, the metric table, the machine's cores."""

from __future__ import annotations

import dataclasses
import math
import os
import signal
from pathlib import Path

import pytest

from sweeper.core import machine
from sweeper.core.config import TrialConfig
from sweeper.core.files import read_json, write_atomic, write_json
from sweeper.core.job import CONFIG, OUTCOME, Job, read_job, read_outcome, write_job, write_outcome
from sweeper.core.measurement import (
    INFEASIBLE,
    RETRIES,
    DeviceInfo,
    Diagnosis,
    Failure,
    FailureKind,
    Quality,
    Report,
    Stats,
)
from sweeper.core.record import METRICS, TrialRecord, rounded
from sweeper.testing import noop


def in_a_child(function) -> int:
    """Runs `function` in a forked child, and returns the wait status."""
    pid = os.fork()
    if pid == 0:
        try:
            function()
        finally:
            os._exit(99)
    return os.waitpid(pid, 0)[1]


def test_killed_between_write_and_rename_the_old_file_is_whole(tmp_path: Path):
    path = tmp_path / OUTCOME
    write_atomic(path, "old")

    def killed_in_rename():
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        write_atomic(path, "new" * 100_000)

    assert os.WTERMSIG(in_a_child(killed_in_rename)) == signal.SIGKILL
    assert path.read_text() == "old"
    assert read_outcome(tmp_path / "other") is None


def test_the_data_is_on_disk_before_the_name_and_the_name_before_the_return(tmp_path: Path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append("fsync"), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("rename"), replace(a, b)))
    write_atomic(tmp_path / "a", "text")
    assert calls == ["fsync", "rename", "fsync"]


def test_an_error_leaves_no_temporary_file(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_atomic(tmp_path / "a", "text")
    assert list(tmp_path.iterdir()) == []


def test_nan_never_reaches_a_file_and_odd_text_does(tmp_path: Path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a", {"x": math.nan})
    write_json(tmp_path / "a", {"x": "straße \udcff"})
    assert read_json(tmp_path / "a")["x"].startswith("straße")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_job_and_outcome_come_back_from_their_folder(tmp_path: Path):
    folder = tmp_path / "trials" / "0007"
    job = Job(uid="u", config=TrialConfig(batch_size=3, model={"h": 1}))
    write_job(folder, job)
    assert read_job(folder) == job
    assert read_json(folder / CONFIG)["schema"] == 1
    assert read_outcome(folder) is None
    for outcome in (
        Failure(kind=FailureKind.OOM, message="m"),
        Report(values={"a": [1]}),
        noop.run(job, progress=_Deaf()),
    ):
        write_outcome(folder, outcome)
        assert read_outcome(folder) == outcome


class _Deaf:
    def device(self, info):
        pass


def test_a_finding_about_the_configuration_is_not_retried():
    assert not INFEASIBLE & RETRIES.keys()
    assert FailureKind.USER_ERROR not in INFEASIBLE | RETRIES.keys()


# -- the metric table ---------------------------------------------------------------------------------


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
    assert [got.metric(f"gpu_power_w{part}") for part in ("", "_p50", "_p95")] == [100.0, 1.0, 2.0]
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
    assert rounded(123456.0, 3) == 123000.0


# -- cores ----------------------------------------------------------------------------------------------


@pytest.fixture
def bare(monkeypatch, tmp_path: Path) -> Path:
    """16 cores by affinity, no SLURM, and of control groups (below the folder returned) none."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(machine, "_CGROUPS", tmp_path / "groups")
    monkeypatch.setattr(machine, "_OWN_CGROUP", tmp_path / "own")
    (tmp_path / "groups").mkdir()
    return tmp_path / "groups"


def test_cores_are_the_least_of_affinity_slurm_and_control_group(bare: Path, monkeypatch):
    assert machine.usable_cpus() == 16
    (bare / "cpu.max").write_text("600000 100000\n")
    assert machine.usable_cpus() == 6
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "5")
    assert machine.usable_cpus() == 5
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "4")
    assert machine.usable_cpus() == 4
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    assert machine.usable_cpus() == 2


@pytest.mark.parametrize(("text", "cores"), [("max 100000", 16), ("50000 100000", 1), ("rubbish", 16)])
def test_control_group_v2(bare: Path, text: str, cores: int):
    (bare / "cpu.max").write_text(text)
    assert machine.usable_cpus() == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", 16), ("250000", 2)])
def test_control_group_v1(bare: Path, quota: str, cores: int):
    bare.with_name("own").write_text("5:memory:/\n4:cpu,cpuacct:/\n")
    (bare / "cpu").mkdir()
    (bare / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (bare / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert machine.usable_cpus() == cores
    assert str(cores) in machine.cpu_name()


@pytest.mark.parametrize(
    ("own", "folder", "name", "text"),
    [
        ("0::/slice/job/step\n", ".", "cpu.max", "{}00000 100000"),
        ("4:cpu,cpuacct:/slice/job/step\n0::/elsewhere\n", "cpu", "cpu.cfs_quota_us", "{}00000"),
    ],
    ids=["v2", "v1"],
)
def test_the_quota_of_any_group_above_counts(bare: Path, own: str, folder: str, name: str, text: str):
    bare.with_name("own").write_text(own)
    job = bare / folder / "slice" / "job"
    (job / "step").mkdir(parents=True)
    (job / "other").mkdir()

    def write(group: Path, cores: int) -> None:
        (group / name).write_text(text.format(cores))
        if name != "cpu.max":
            (group / "cpu.cfs_period_us").write_text("100000")

    write(job / "other", 1)
    assert machine.usable_cpus() == 16
    write(bare / folder, 12)
    assert machine.usable_cpus() == 12
    write(job, 3)
    assert machine.usable_cpus() == 3
    write(job / "step", 7)
    assert machine.usable_cpus() == 3
    # In a container the path may be one of the host's.
    bare.with_name("own").write_text(own.replace("/slice/job/step", "/../gone/away"))
    assert machine.usable_cpus() == 12
