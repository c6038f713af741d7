"""What a sweep has cost: the time something ran, and the energy by counter or by power."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sweeper.core.config import TrialConfig
from sweeper.core.job import Job, write_job, write_outcome
from sweeper.core.measurement import Failure, FailureKind
from sweeper.core.place import TrialPlace, write_place
from sweeper.report.cost import Use, covered_seconds, joules_of, total_joules, uses_of
from sweeper.report.series import TimedValues, downsample, read_series


def test_pauses_between_two_runs_of_a_sweep_do_not_count() -> None:
    assert covered_seconds([]) == 0
    assert covered_seconds([(0, 10), (12, 20)]) == 20
    assert covered_seconds([(12, 20), (0, 15), (1, 2)]) == 20
    assert covered_seconds([(0, 10), (1000, 1005)]) == 15


def test_energy_is_the_cards_own_count_else_power_over_time() -> None:
    seconds = np.array([0.0, 1.0, 3.0])
    power = TimedValues(seconds, np.array([100.0, 200.0, 200.0]))
    counter = TimedValues(seconds, np.array([5.0, 300.0, 700.0]))
    assert joules_of({"gpu_power_w": power}) == pytest.approx(150 + 400)
    assert joules_of({"gpu_power_w": power, "gpu_energy_j": counter}) == 695
    assert joules_of({}) is None
    assert joules_of({"gpu_power_w": TimedValues(seconds[:1], power.values[:1])}) is None


def test_what_several_processes_see_of_a_gpu_counts_once() -> None:
    def use(gpu: str, began: float, ended: float, joules: float) -> Use:
        return Use(gpu=("", gpu), began=began, ended=ended, joules=joules)

    assert total_joules([]) is None
    # Two that take turns for ten seconds, one that comes later, and one on another GPU.
    turns = [use("GPU-a", 0, 10, 1000), use("GPU-a", 5, 15, 1000), use("GPU-a", 20, 21, 50)]
    assert total_joules(turns) == pytest.approx(1550)
    assert total_joules([*turns, use("GPU-b", 0, 10, 7)]) == pytest.approx(1557)


def process(folder: Path, device: str, place: TrialPlace, finished_at: float) -> Path:
    (folder / "series").mkdir(parents=True)
    np.save(folder / "series" / "time_s.npy", np.arange(3.0))
    np.save(folder / "series" / "gpu_energy_j.npy", np.array([0.0, 100.0, 200.0]))
    np.save(folder / "series" / "gpu1_energy_j.npy", np.array([1000.0, 1000.0, 1050.0]))
    config = TrialConfig(batch_size=8).replace({"device.count": 2})
    write_job(folder, Job(uid="a", config=config, device=device))
    write_outcome(folder, Failure(kind=FailureKind.OOM, message="", finished_at=finished_at))
    write_place(folder, place)
    return folder


def test_every_gpu_of_a_process_counts(tmp_path: Path) -> None:
    found = list(uses_of(process(tmp_path / "0", "GPU-a,GPU-b", TrialPlace(), 1000.0), 1000.0))
    assert [(each.gpu[1], each.began, each.ended, each.joules) for each in found] == [
        ("GPU-a", 998.0, 1000.0, 200.0),
        ("GPU-b", 998.0, 1000.0, 50.0),
    ]


def test_workers_of_a_cluster_have_different_gpus(tmp_path: Path) -> None:
    uses = [
        use
        for job in ("1", "2")
        for use in uses_of(
            process(tmp_path / job, "auto", TrialPlace(host="n", gpu="0,1", job=job), 1000.0), 1000.0
        )
    ]
    assert total_joules(uses) == pytest.approx(500)


def test_a_series_that_is_torn_or_of_another_length_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "series"
    folder.mkdir()
    np.save(folder / "time_s.npy", np.arange(4.0))
    np.save(folder / "whole.npy", np.array([1.0, np.nan, 3.0, np.inf]))
    np.save(folder / "longer.npy", np.arange(5.0))
    np.save(folder / "words.npy", np.array(["a", "b", "c", "d"]))
    np.save(folder / "none.npy", np.full(4, np.nan))
    (folder / "torn.npy").write_bytes(b"\x93NUMPY")
    found = read_series(tmp_path, ("whole", "longer", "words", "none", "torn", "absent"))
    assert list(found) == ["whole"]
    assert found["whole"].seconds.tolist() == [0.0, 2.0]
    assert read_series(tmp_path / "nowhere", ("whole",)) == {}


def test_a_long_series_is_thinned_to_means() -> None:
    column = TimedValues(np.arange(1000.0), np.tile([0.0, 1.0], 500))
    short = downsample(column, 100)
    assert len(short.values) == 100
    assert short.values.tolist() == [0.5] * 100
    assert short.seconds.mean() == pytest.approx(column.seconds.mean())
    assert downsample(short, 100) is short
