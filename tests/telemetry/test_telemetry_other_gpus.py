"""The GPUs of a trial besides its first, through the stand-in for NVML."""

from __future__ import annotations

import os

import pytest
import stub_nvml
from stub_nvml import Gpu, loaded, write

from sweeper.core.gpu_series import by_rank, of_rank
from sweeper.telemetry.nvml.other_gpus import OtherGpus

FIRST = Gpu("GPU-aaaaaaaa-0000-4000-8000-000000000001", "NVIDIA A10")
SECOND = Gpu("GPU-bbbbbbbb-0000-4000-8000-000000000002", "NVIDIA A10").but(util_gpu=[12])
THIRD = Gpu("GPU-cccccccc-0000-4000-8000-000000000003", "NVIDIA A10").but(util_gpu=[34])


@pytest.fixture
def play(monkeypatch, tmp_path, tmp_path_factory):
    if stub_nvml.compiler() is None:
        pytest.skip("no C compiler for the stand-in for NVML")
    library = stub_nvml.build(tmp_path_factory.mktemp("nvml"))

    def play(*gpus, **how):
        loaded(monkeypatch, library, write(tmp_path / "scenario", gpus, **how))

    return play


def opened(*uuids: str) -> OtherGpus:
    probe = OtherGpus(uuids)
    probe.open(os.getpid(), FIRST.uuid)
    return probe


def test_series_have_the_rank_of_their_gpu(play):
    play(FIRST, SECOND, THIRD)
    probe = opened(SECOND.uuid, "2")
    values = probe.read()
    assert (values["gpu1_util_pct"], values["gpu2_util_pct"]) == (12, 34)
    assert not any(name.startswith("gpu_") for name in values)
    assert probe.read_between_windows() == {
        f"gpu{rank}_foreign_{what}": 0 for rank in (1, 2) for what in ("processes", "mem_gib")
    }
    assert "Hopper" in probe.missing["gpu2_sm_active_pct"]
    assert not probe.lost
    probe.close()


def test_one_that_is_lost_is_named(play):
    play(FIRST, SECOND, THIRD, errors=[(THIRD.uuid, "*", 15)])
    probe = opened(SECOND.uuid, THIRD.uuid)
    assert probe.read()["gpu1_util_pct"] == 12
    assert probe.lost
    assert probe.missing["gpu"].startswith("GPU 2: ")
    probe.close()


def test_one_that_is_not_there_costs_no_other(play):
    play(FIRST, SECOND)
    probe = opened("GPU-ffff", SECOND.uuid)
    assert probe.read()["gpu2_util_pct"] == 12
    assert not probe.lost
    assert "GPU-ffff" in probe.missing["gpu1"]


def test_names_go_back_and_forth():
    series = {
        of_rank(name, rank): rank for name in ("gpu_power_w", "gpu_foreign_mem_gib") for rank in range(12)
    }
    assert len(series) == 24
    found = by_rank({**series, "cpu_power_w": -1}, 12)
    assert found == [{"gpu_power_w": rank, "gpu_foreign_mem_gib": rank} for rank in range(12)]
