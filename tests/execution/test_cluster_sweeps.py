"""Whole sweeps on clusters: what is lost runs again, nothing is there twice, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from services.disturbing import Survived, on_dask, on_ray, on_slurm
from services.slurm import Slurm


def assert_whole(survived: Survived, devices: int, lost: int) -> None:
    assert survived.faults == []
    assert survived.devices >= devices
    assert survived.at_once >= 2
    assert survived.retried >= lost


@pytest.mark.slow
@pytest.mark.slurm
def test_jobs_of_slurm_are_cancelled_queued_again_and_killed(slurm: Slurm, tmp_path: Path):
    assert_whole(on_slurm(slurm, tmp_path, trials=12, jobs=4), devices=4, lost=4)


@pytest.mark.soak
@pytest.mark.slurm
def test_forty_trials_on_eight_jobs_of_slurm(slurm: Slurm, tmp_path: Path):
    assert_whole(on_slurm(slurm, tmp_path, trials=40, jobs=8), devices=8, lost=4)


@pytest.mark.soak
def test_a_worker_of_dask_is_killed(tmp_path: Path):
    pytest.importorskip("distributed", reason="Dask is not installed: `make services` does it")
    assert_whole(on_dask(tmp_path, trials=12, workers=2), devices=2, lost=1)


@pytest.mark.soak
@pytest.mark.ray
def test_a_node_of_ray_is_killed(tmp_path: Path):
    pytest.importorskip("ray", reason="Ray is not installed: `make services` does it")
    assert_whole(on_ray(tmp_path, trials=20), devices=2, lost=1)
