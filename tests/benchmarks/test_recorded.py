"""Recorded surfaces: what is read of them, and what a trial on one gives."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.recorded.surfaces import (
    Head,
    Process,
    RecordedSurface,
    Recording,
    add,
    begin,
    processes_of,
    read,
)
from sweeper.core.measurement import Failure, FailureKind, Measurement
from sweeper.errors import UserError
from sweeper.schema import SweepSpec

SPEC = SweepSpec.from_dict(
    {
        "name": "toy",
        "pipeline": "pipelines.tabular",
        "space": {"batch_size": {"type": "categorical", "choices": [64, 128, 256]}},
        "baseline": {"batch_size": 64},
    }
)
SMALL, LARGE, BROKEN = (SPEC.config({"batch_size": size}) for size in (64, 128, 256))


def process(size: int, index: int, *windows: float, **others: object) -> Process:
    found = {"configuration": {"batch_size": size}, "round": index, "throughput": windows, **others}
    return Process(**found)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "toy.jsonl"
    begin(file, Head(name="toy", device="none", space=SPEC.to_dict()))
    times = {"startup_seconds": 0.1, "warmup_seconds": 0.4}
    for each in (
        process(64, 0, 90.0, 110.0, peak_gib=1.0, **times),
        process(128, 0, 300.0, peak_gib=2.5, **times),
        process(64, 1, 100.0, 300.0, peak_gib=1.1, startup_seconds=0.1, warmup_seconds=0.6, disturbed=("x",)),
        process(128, 1, invalidity="oom"),
        process(256, 0, invalidity="unsupported"),
        process(64, 0, 100.0, repeated=True),
        process(128, 0, 300.0, repeated=True),
        process(64, 1, 200.0, repeated=True),
    ):
        add(file, each)
    return file


@pytest.fixture
def recording(path: Path) -> Recording:
    return read(path)


def test_cells_rest_on_what_was_not_disturbed(recording: Recording):
    cells = recording.cells
    assert cells[SMALL.key()].throughput == 100
    assert cells[SMALL.key()].start_seconds == pytest.approx(0.5)
    assert cells[SMALL.key()].peak_gib == pytest.approx(1.05)
    assert cells[LARGE.key()].throughput == 300
    assert cells[BROKEN.key()].failure == "unsupported"


def test_noise_is_what_repeats_differ_by(recording: Recording):
    assert recording.rounds == [{SMALL.key(): 100, LARGE.key(): 300}, {SMALL.key(): 200}]
    assert sorted(recording.noise) == pytest.approx([math.log(100 / 150), 0.0, math.log(200 / 150)])


def test_half_a_line_is_cut_off(path: Path):
    whole = list(processes_of(path))
    with path.open("a") as file:
        file.write('{"configuration": {"batch')
    assert list(processes_of(path)) == whole
    begin(path, Head(name="toy", device="none", space=SPEC.to_dict()))
    add(path, process(64, 2, 1.0))
    assert list(processes_of(path)) == [*whole, process(64, 2, 1.0)]


def test_a_line_says_what_is_particular_about_it(path: Path):
    *_, last = path.read_text().splitlines()
    assert (
        last == '{"configuration": {"batch_size": 64}, "round": 1, "repeated": true, "throughput": [200.0]}'
    )


def test_what_is_no_surface_is_named(tmp_path: Path):
    file = tmp_path / "no.jsonl"
    with pytest.raises(UserError, match=r"must be a file as described in docs/surfaces.md, but .*no.jsonl"):
        read(file)
    begin(file, Head(schema="other/2", name="toy", device="none", space={}))
    with pytest.raises(UserError, match="`schema` of a surface must be 'sweeper-surface/1', but"):
        read(file)


def test_a_trial_has_the_recorded_speed_with_the_recorded_noise(recording: Recording):
    surface = RecordedSurface(recording.cells, [-0.1, 0.1], limit_gib=2.0, seed=3)
    found = [surface(SMALL) for _ in range(40)]
    assert all(isinstance(each, Measurement) for each in found)
    ratios = {round(math.log(each.throughput / 100), 6) for each in found}
    assert ratios == {-0.1, 0.1}
    assert found[0].gpu_mem_peak_gib == pytest.approx(1.05)
    again = RecordedSurface(recording.cells, [-0.1, 0.1], limit_gib=2.0, seed=3)
    assert [again(SMALL).throughput for _ in range(40)] == [each.throughput for each in found]
    other = RecordedSurface(recording.cells, [-0.1, 0.1], limit_gib=2.0, seed=4)
    assert [other(SMALL).throughput for _ in range(40)] != [each.throughput for each in found]


def test_what_needs_more_than_the_limit_runs_out_of_memory(recording: Recording):
    surface = RecordedSurface(recording.cells, [0.0], limit_gib=2.0)
    assert isinstance(surface(LARGE), Failure)
    assert surface.best() == 100
    assert RecordedSurface(recording.cells, [0.0]).best() == 300


def test_what_failed_fails(recording: Recording):
    found = RecordedSurface(recording.cells, [0.0])(BROKEN)
    assert isinstance(found, Failure)
    assert found.kind == FailureKind.UNSUPPORTED


def test_what_accumulates_is_as_fast_as_its_micro_batch(recording: Recording):
    surface = RecordedSurface(recording.cells, [0.0])
    found = surface(SMALL.replace({"accumulate_steps": 4}))
    assert isinstance(found, Measurement)
    assert found.throughput == 100
