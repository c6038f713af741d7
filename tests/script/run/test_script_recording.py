"""Scripts whose first steps are recorded, and which are then timed."""

from __future__ import annotations

import dataclasses
import sys
import textwrap
from pathlib import Path

import pytest

from sweeper.core.job import MeasurePlan
from sweeper.core.measurement import FailureKind, Measurement
from sweeper.core.progress import SilentProgress, TrialFailedError
from sweeper.core.recording import Recording
from sweeper.core.script import Script
from sweeper.core.template import literal
from sweeper.script.run import trial
from sweeper.script.run.warm import read_record, read_warm
from sweeper.script.run.watch import job_outside_a_sweep

pytestmark = pytest.mark.slow

PLAN = MeasurePlan(window_seconds=0.3, repeats=1, warmup_cap_seconds=1.0, diagnose=False)
TRAINING = """
import sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
workers = {"num_workers": 2, "prefetch_factor": 10} if len(sys.argv) > 3 else {}
loader = DataLoader(TensorDataset(torch.randn(960, 8)), 16, shuffle=True, **workers)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for epoch in range(int(sys.argv[1])):
    for number, (x,) in enumerate(loader):
        time.sleep(float(sys.argv[2]))
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    print("batches", number + 1, flush=True)
"""


def measured(
    tmp_path: Path, recording: Recording, epochs: str = "100000", sleep: str = "0", *more: str
) -> tuple[Measurement, Path]:
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAINING))
    words = (sys.executable, "train.py", epochs, sleep, *more)
    script = Script(command=tuple(map(literal, words)), folder=str(tmp_path))
    with job_outside_a_sweep(script, PLAN) as job:
        place = tmp_path / "job"
        place.mkdir()
        job = dataclasses.replace(job, folder=str(place), recording=recording)
        return trial.run(job, SilentProgress()), place


def test_the_first_steps_are_recorded_and_the_later_ones_are_timed(tmp_path, capfd):
    found, place = measured(tmp_path, Recording(steps=20))
    (events,) = read_record(place).events.values()
    assert sum("step" in event for event in events) == 20
    assert events[-1]["end"] == "done"
    assert any("which were recorded" in text for text in found.exclusions)
    # What is recorded takes far longer than a step that is only counted.
    assert found.throughput > 16 * 1000
    # No pass was cut short.
    assert set(capfd.readouterr().out.split("\n")[:1]) == {"batches 60"}


def test_what_a_process_shows_before_its_first_window_is_there(tmp_path):
    _, place = measured(tmp_path, Recording(steps=10), sleep="0.01")
    warm = read_warm(place)
    parts = warm.measurement.breakdown
    # The script sleeps between its batch and its step.
    assert parts.forward_s > 0.8 * parts.step_s > 0.008
    assert warm.measurement.observed["optimizer"] == "SGD"
    assert warm.measurement.throughput == pytest.approx(16 / parts.step_s, rel=0.3)
    assert warm.memory_gib > 0.05


@pytest.mark.parametrize("workers", [(), ("workers that have asked for a whole pass that is cut",)])
def test_passes_are_whole_again_once_the_record_is_complete(tmp_path, capfd, workers):
    _, place = measured(tmp_path, Recording(batches=8, seconds=30.0), "100000", "0", *workers)
    (events,) = read_record(place).events.values()
    assert sum("pass" in event for event in events) == 2
    assert sum("step" in event for event in events) == 2 * 8 + 3
    lengths = [line for line in capfd.readouterr().out.splitlines() if line.startswith("batches")]
    assert lengths[:4] == ["batches 8", "batches 8", "batches 60", "batches 60"]


def test_a_record_whose_time_is_up_is_cut_off(tmp_path):
    _, place = measured(tmp_path, Recording(steps=1000, seconds=0.5), sleep="0.05")
    (events,) = read_record(place).events.values()
    assert 8 <= sum("step" in event for event in events) < 20
    assert "end" not in events[-1]


def test_a_script_that_ends_with_its_record_cannot_be_timed(tmp_path):
    with pytest.raises(TrialFailedError, match="no longer than its record") as raised:
        measured(tmp_path, Recording(batches=8, seconds=30.0), epochs="2")
    assert raised.value.kind is FailureKind.NO_RESULT
    (events,) = read_record(tmp_path / "job").events.values()
    assert events[-1]["end"] == "exit"
