"""Whole sweeps on clusters: what is lost runs again, nothing is there twice, and nothing is left behind."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from services.disturbing import Survived, on_dask, on_ray, on_slurm
from services.processes import wait_for
from services.slurm import Slurm
from services.sweeps import Sweep


def assert_whole(survived: Survived, devices: int, lost: int) -> None:
    assert survived.faults == [], "\n".join(survived.faults)
    assert survived.devices >= devices
    assert survived.at_once >= 2
    assert survived.retried >= lost


@pytest.mark.slow
@pytest.mark.slurm
def test_jobs_of_slurm_are_cancelled_queued_again_and_killed(slurm: Slurm, tmp_path: Path):
    assert_whole(on_slurm(slurm, tmp_path, trials=12, jobs=4), devices=4, lost=4)


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_sweep_that_is_ended_leaves_no_job(slurm: Slurm, tmp_path: Path, number: signal.Signals):
    settings = [
        *("execution.launcher=slurm", "execution.gpus=0", "execution.slots=20", "execution.job.cores=1"),
        *("execution.job.memory=500MB", "execution.job.interface=lo"),
    ]
    sweep = Sweep(tmp_path, settings, env=slurm.env)
    supervisor = sweep.start()
    try:
        # Some jobs wait: there are 16 cores.
        wait_for(lambda: len(slurm.squeue()) == 20, 40, lambda: f"{slurm.squeue()}")
        supervisor.send_signal(number)
        said, _ = supervisor.communicate(timeout=60)
    finally:
        supervisor.kill()
    assert supervisor.returncode == 128 + number, said
    assert {row.state for row in slurm.squeue()} <= {"COMPLETING"}
    slurm.wait_empty()


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
