"""The cores of this machine that are ours to use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sweeper.system import cpu


@pytest.fixture
def bare(monkeypatch, tmp_path: Path) -> Path:
    """16 cores by affinity, no SLURM, and of control groups (below the folder returned) none."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cpu, "_CGROUPS", tmp_path / "groups")
    monkeypatch.setattr(cpu, "_OWN_CGROUP", tmp_path / "own")
    (tmp_path / "groups").mkdir()
    return tmp_path / "groups"


def test_cores_are_the_least_of_affinity_slurm_and_control_group(bare: Path, monkeypatch):
    assert cpu.usable_cpus() == 16
    (bare / "cpu.max").write_text("600000 100000\n")
    assert cpu.usable_cpus() == 6
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "5")
    assert cpu.usable_cpus() == 5
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "4")
    assert cpu.usable_cpus() == 4
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    assert cpu.usable_cpus() == 2


@pytest.mark.parametrize(("text", "cores"), [("max 100000", 16), ("50000 100000", 1), ("rubbish", 16)])
def test_control_group_v2(bare: Path, text: str, cores: int):
    (bare / "cpu.max").write_text(text)
    assert cpu.usable_cpus() == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", 16), ("250000", 2)])
def test_control_group_v1(bare: Path, quota: str, cores: int):
    bare.with_name("own").write_text("5:memory:/\n4:cpu,cpuacct:/\n")
    (bare / "cpu").mkdir()
    (bare / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (bare / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert cpu.usable_cpus() == cores
    assert str(cores) in cpu.cpu_name()


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
    assert cpu.usable_cpus() == 16
    write(bare / folder, 12)
    assert cpu.usable_cpus() == 12
    write(job, 3)
    assert cpu.usable_cpus() == 3
    write(job / "step", 7)
    assert cpu.usable_cpus() == 3
    # In a container the path may be one of the host's.
    bare.with_name("own").write_text(own.replace("/slice/job/step", "/../gone/away"))
    assert cpu.usable_cpus() == 12
