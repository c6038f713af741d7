"""Recorded surfaces: what is read of them, and what a trial on one gives."""

from __future__ import annotations

import math

import pytest

from sweeper.core.config import TrialConfig
from sweeper.core.measurement import Failure, Measurement
from sweeper.testing.recorded import RecordedSurface, cells_of, noise_of, rounds_of

SMALL, LARGE = TrialConfig(batch_size=64), TrialConfig(batch_size=128)
HEADER = "pass,key,outcome,windows,startup_s,first_step_s,warmup_s,memory_gib,flags,at\n"


@pytest.fixture
def path(tmp_path):
    lines = [
        f"0,{SMALL.key()},measured,90 110,0.1,0.01,0.4,1.0,,1.0",
        f"0,{LARGE.key()},measured,300,0.1,0.01,0.4,2.5,,2.0",
        f"1,{SMALL.key()},measured,100 300,0.1,0.01,0.6,1.1,others,3.0",
        f"1,{LARGE.key()},oom,,,,,,,4.0",
    ]
    file = tmp_path / "toy.csv"
    file.write_text(HEADER + "\n".join(lines) + "\n")
    return file


def test_cells_rest_on_what_was_not_disturbed(path):
    cells = cells_of(path)
    assert cells[SMALL.key()].throughput == 100
    assert cells[SMALL.key()].start_seconds == pytest.approx(0.5)
    assert cells[SMALL.key()].peak_gib == pytest.approx(1.05)
    assert cells[LARGE.key()].throughput == 300


def test_noise_is_what_repeats_differ_by(path):
    assert sorted(noise_of(path)) == pytest.approx([math.log(100 / 150), 0.0, math.log(200 / 150)])
    assert rounds_of(path) == [{SMALL.key(): 100, LARGE.key(): 300}, {SMALL.key(): 200}]


def test_a_trial_has_the_recorded_speed_with_the_recorded_noise(path):
    cells = cells_of(path)
    surface = RecordedSurface(cells, [-0.1, 0.1], limit_gib=2.0, seed=3)
    found = [surface(SMALL) for _ in range(40)]
    assert all(isinstance(each, Measurement) for each in found)
    ratios = {round(math.log(each.throughput / 100), 6) for each in found}
    assert ratios == {-0.1, 0.1}
    assert found[0].gpu_mem_peak_gib == pytest.approx(1.05)
    again = RecordedSurface(cells, [-0.1, 0.1], limit_gib=2.0, seed=3)
    assert [again(SMALL).throughput for _ in range(40)] == [each.throughput for each in found]
    other = RecordedSurface(cells, [-0.1, 0.1], limit_gib=2.0, seed=4)
    assert [other(SMALL).throughput for _ in range(40)] != [each.throughput for each in found]


def test_what_needs_more_than_the_limit_runs_out_of_memory(path):
    surface = RecordedSurface(cells_of(path), [0.0], limit_gib=2.0)
    assert isinstance(surface(LARGE), Failure)
    assert surface.best() == 100
    assert RecordedSurface(cells_of(path), [0.0]).best() == 300


def test_what_accumulates_is_as_fast_as_its_micro_batch(path):
    surface = RecordedSurface(cells_of(path), [0.0])
    assert surface(SMALL.replace({"accumulate_steps": 4})).throughput == 100
