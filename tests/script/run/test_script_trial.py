"""Scripts in the styles of the wild: what is understood of them, how they are ended, what they leave."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
import time
from pathlib import Path

import pytest
import stub_nvml
from scripts import EVIL, PARAMS, PLAN, SCRIPTS, WILD, job_of

from sweeper.core.job import SCRIPT_QUALITY_RUNNER
from sweeper.core.measurement import Failure, Measurement, Report, Window
from sweeper.core.progress import SilentProgress, TrialFailedError
from sweeper.core.script import Script
from sweeper.core.template import literal
from sweeper.errors import UserError
from sweeper.script.run import running, start
from sweeper.script.run import trial as under_test
from sweeper.script.run.watch import job_outside_a_sweep
from sweeper.trainer.timing import windows


def heard(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "trial" / "script.json").read_text())["heard"]
    return found


# The others are for `make soak`.
OFTEN = ("with_argparse", "with_trainer")
STYLES = [name if name in OFTEN else pytest.param(name, marks=pytest.mark.soak) for name in SCRIPTS]


@pytest.mark.slow
@pytest.mark.parametrize("name", STYLES)
def test_the_output_says_what_the_meter_says(run, tmp_path, name: str):
    # Long enough that it does not matter when exactly a line is read.
    found = run(job_of(SCRIPTS[name], PARAMS[name], dataclasses.replace(PLAN, window_seconds=0.6)))
    assert isinstance(found, Measurement), found
    assert found.reported_by == "the meter"
    report = heard(tmp_path)
    assert report["output_samples_per_s"] == pytest.approx(report["meter_samples_per_s"], rel=0.03)
    assert report["meter_samples_per_s"] == pytest.approx(found.throughput, rel=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("name", STYLES)
def test_without_a_meter_the_output_is_believed(run, name: str):
    script = dataclasses.replace(SCRIPTS[name], env={"NO_METER": "1"})
    found = run(job_of(script, PARAMS[name]))
    assert isinstance(found, Measurement), found
    assert found.reported_by.startswith("the output")
    assert len(found.windows) == PLAN.repeats
    # 32 samples of 10 kB and 1 MB: what a hash gives, give or take a slow machine.
    assert 500 < found.throughput < 50_000


def test_the_loss_is_looked_at_after_the_same_samples(run):
    plan = dataclasses.replace(PLAN, quality_samples=40_000)
    found = run(job_of(SCRIPTS["with_argparse"], PARAMS["with_argparse"], plan))
    assert (found.quality.samples, found.quality.of) == (40_000, "training")
    # The mean over the last tenth of exp(-samples / 20,000), and 0.2.
    assert found.quality.val_loss == pytest.approx(0.2 + math.exp(-1.9), rel=0.02)
    assert found.quality.key.endswith("-40000")


def test_a_script_that_comes_to_its_end_has_its_last_validation_loss(run):
    files = {"config.yaml": "train: {batch_size: {batch_size}, epochs: 3}\ndata: {samples: 9600}\n"}
    script = dataclasses.replace(SCRIPTS["with_yaml"], stop="at_end", files=files)
    # A short warm-up and windows enough: an epoch ends among them however busy the machine is.
    plan = dataclasses.replace(PLAN, quality_samples=1, repeats=9, warmup_cap_seconds=0.3)
    found = run(job_of(script, {"batch_size": 32}, plan))
    assert (found.quality.samples, found.quality.of) == (28_800, "validation")
    assert found.quality.val_loss == pytest.approx(1.1 * (0.2 + math.exp(-1.44)), rel=0.001)
    assert any("pauses for evaluation" in each for each in found.exclusions)


def test_only_the_loss_is_run_for(run):
    plan = dataclasses.replace(PLAN, repeats=0, quality_samples=6400)
    job = job_of(SCRIPTS["with_argparse"], PARAMS["with_argparse"], plan)
    found = run(dataclasses.replace(job, runner=SCRIPT_QUALITY_RUNNER))
    assert isinstance(found, Report), found
    assert found.values["samples"] == 6400


def test_a_script_without_a_loss_says_so(run):
    script = dataclasses.replace(
        SCRIPTS["with_argparse"], patterns=(r"(?P<samples_per_s>[\d,.]+) samples/s",)
    )
    plan = dataclasses.replace(PLAN, repeats=0, quality_samples=6400)
    job = job_of(dataclasses.replace(script, env={"NO_METER": "1"}), PARAMS["with_argparse"], plan)
    found = run(dataclasses.replace(job, runner=SCRIPT_QUALITY_RUNNER))
    assert isinstance(found, Failure)
    assert "reported no loss" in found.message


def test_a_trial_that_is_too_slow_is_screened_out(tmp_path, monkeypatch):
    # In this process: a window that something else disturbs decides nothing.
    monkeypatch.setattr(windows, "of_host", lambda window, quiet_canary_ms: ())
    plan = dataclasses.replace(PLAN, screen_seconds=0.1, screen_above=1e9, quality_samples=10**9)
    job = job_of(SCRIPTS["with_argparse"], PARAMS["with_argparse"], plan, folder=str(tmp_path))
    found = under_test.run(job, SilentProgress())
    assert (found.is_screened, len(found.windows), found.quality) == (True, 1, None)


def test_a_script_is_asked_to_stop_and_may_say_good_bye(run, tmp_path):
    job = job_of(EVIL, {"how": "polite", "batch_size": 32})
    assert isinstance(run(job), Measurement)
    assert "good bye" in (tmp_path / "trial" / "worker.log").read_text()


def test_a_script_has_the_users_environment_and_its_own(run, tmp_path, monkeypatch):
    script = dataclasses.replace(EVIL, env={"OWN": "{batch_size}"}, keep=True)
    job = job_of(script, {"how": "environment", "batch_size": 32})
    found = run(job)
    assert isinstance(found, Measurement)
    assert "torch was not seen in its processes" in found.effective["script.watch"]
    said = (tmp_path / "trial" / "worker.log").read_text()
    # What sweeper sets for its own processes is not among it.
    assert "'OMP_NUM_THREADS': None, 'CUDA_VISIBLE_DEVICES': '', 'OWN': '32'" in said
    assert list((tmp_path / "trial" / "work").rglob("result.txt"))
    assert not (WILD / "result.txt").exists()


@pytest.mark.parametrize("visible", [None, "1"])
def test_outside_of_a_sweep_it_sees_the_gpus_that_it_would_see(monkeypatch, visible):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    script = Script(command=("sleep", "60"), folder=str(WILD))
    with job_outside_a_sweep(script) as job, start.started(job, SilentProgress()) as running:
        found = Path(f"/proc/{running.process.pid}/environ").read_text().split("\0")
    assert [each for each in found if each.startswith("CUDA_VISIBLE_DEVICES=")] == (
        [] if visible is None else [f"CUDA_VISIBLE_DEVICES={visible}"]
    )


def test_what_it_wrote_is_removed_unless_it_is_to_be_kept(run, tmp_path):
    run(job_of(EVIL, {"how": "environment", "batch_size": 32}))
    assert not (tmp_path / "trial" / "work").exists()
    record = json.loads((tmp_path / "trial" / "script.json").read_text())
    assert record["command"][1:] == ["evil.py", "environment", "32"]


def test_steps_of_an_unknown_size_ask_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "PATIENCE_SECONDS", 0.5)
    script = Script(command=(sys.executable, "evil.py", "polite", "{size}"))
    job = dataclasses.replace(job_of(script, {"size": 32}), folder=str(tmp_path))
    with pytest.raises(UserError, match=r"`script\.samples_per_step` is required"):
        under_test.run(job, SilentProgress())


SLOW_START = """
import time, torch
for step in range(5):
    print("step", step)
    time.sleep(0.4)
model = torch.nn.Linear(20, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(3200, 20)), batch_size=32)
while True:
    for (x,) in loader:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.slow
def test_steps_in_the_output_ask_for_nothing_where_torch_will_report(tmp_path, monkeypatch, capfd):
    """Their size is unknown, and until the first real step they are all that is heard."""
    monkeypatch.setattr(running, "PATIENCE_SECONDS", 0.5)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "train.py").write_text(SLOW_START)
    job = job_of(Script(command=(sys.executable, "train.py")), {}, folder=str(tmp_path / "trial"))
    assert job.script is not None
    script = dataclasses.replace(job.script, folder=str(tmp_path / "own"))
    found = under_test.run(dataclasses.replace(job, script=script), SilentProgress())
    assert found.reported_by == "torch (optimizer steps, the loader's batches)"


STAGES = """
import time, torch
torch.set_num_threads(1)
data = torch.utils.data.TensorDataset(torch.randn(3200, 20))
for pause_s, steps in ((0.002, 600), (0.02, 100_000)):
    model = torch.nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    while steps > 0:
        for (x,) in torch.utils.data.DataLoader(data, batch_size=32):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(pause_s)
            steps -= 1
"""


@pytest.mark.soak
def test_of_two_stages_the_one_that_lasts_is_measured(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "train.py").write_text(STAGES)
    plan = dataclasses.replace(PLAN, window_seconds=1.0, diagnose=True)
    job = job_of(Script(command=(sys.executable, "train.py")), {}, plan, folder=str(tmp_path / "trial"))
    assert job.script is not None
    script = dataclasses.replace(job.script, folder=str(tmp_path / "own"))
    found = under_test.run(dataclasses.replace(job, script=script), SilentProgress())
    assert isinstance(found, Measurement), found
    # Of the first stage it would be 2 ms, of both together something in between.
    assert found.step_ms > 18
    assert found.exclusions[0].startswith("an earlier stage of the training, with another optimizer (")
    # So are the parts of its steps.
    assert found.breakdown.host_gap_s > 0.015


COUNTED = """
import pathlib, sys, time
import torch

with open(sys.argv[1], "a") as starts:
    starts.write("x")
data = torch.utils.data.TensorDataset(torch.randn(320, 20))
model = torch.nn.Linear(20, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
end = time.perf_counter() + float(sys.argv[2])
while time.perf_counter() < end:
    for (x,) in torch.utils.data.DataLoader(data, batch_size=32):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    time.sleep(0.05)
    model.train()
"""


@pytest.mark.parametrize(
    ("seconds", "is_kept", "num_starts"),
    [
        pytest.param(60, False, 1, marks=pytest.mark.slow),
        # It ends before its steps are taken apart, and is started for that alone.
        pytest.param(1.5, False, 2, marks=pytest.mark.soak),
        # What it has trained is kept, and was not trained on half a batch again and again.
        pytest.param(60, True, 2, marks=pytest.mark.soak),
    ],
)
def test_its_steps_are_taken_apart_in_the_process_that_was_timed(
    tmp_path: Path, seconds: float, is_kept: bool, num_starts: int
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "train.py").write_text(COUNTED)
    starts = tmp_path / "trial" / "starts"
    command = (sys.executable, "train.py", str(starts), str(seconds))
    job = job_of(Script(command=command, keep=is_kept), {}, PLAN, folder=str(tmp_path / "trial"))
    assert job.script is not None
    script = dataclasses.replace(job.script, folder=str(tmp_path / "own"))
    plan = dataclasses.replace(PLAN, diagnose=True)
    starts.parent.mkdir()
    found = under_test.run(dataclasses.replace(job, script=script, plan=plan), SilentProgress())
    assert isinstance(found, Measurement), found
    assert starts.read_text() == num_starts * "x"
    assert found.breakdown.step_s == pytest.approx(found.step_ms / 1000, rel=0.5)
    assert found.diagnosis is not None
    # On one batch again and again, it never evaluates.
    assert found.diagnosis.evaluation_share is not None
    assert found.diagnosis.evaluation_share > 0.6
    # A process that ends may not be taken apart to its end.
    assert seconds < 60 or found.diagnosis.half_step_s


def test_a_script_that_falls_silent_is_stalled(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(running, "STALL_RATIO", 1.0)
    job = job_of(EVIL, {"how": "hang", "batch_size": 32}, folder=str(tmp_path), stall_seconds=0.5)
    with pytest.raises(TrialFailedError, match="has reported nothing for 1 s"):
        under_test.run(job, SilentProgress())
    # Where it hung.
    assert re.search(
        r'--- stacks of process .*evil.py.*File ".*evil.py", line \d+ in', capfd.readouterr().out, re.S
    )


def test_a_script_runs_on_what_nvml_calls_its_slot_be_it_a_gpu_or_an_instance_of_one(monkeypatch, tmp_path):
    if stub_nvml.compiler() is None:
        pytest.skip("no C compiler for the stand-in for NVML")
    part = stub_nvml.Mig("MIG-cccc1111-0000-5000-8000-000000000003", memory_mib=4864)
    split = stub_nvml.Gpu("GPU-cccccccc-0000-4000-8000-000000000005", "NVIDIA A100", migs=(part,))
    whole = stub_nvml.Gpu()
    scenario = stub_nvml.write(tmp_path / "scenario", [whole, split])
    stub_nvml.loaded(monkeypatch, stub_nvml.build(tmp_path), scenario)
    found = start._describe(part.uuid)
    assert (found.name, found.uuid, found.memory_gib) == (part.name, part.uuid, 4.75)
    for name in (f"{whole.uuid},{part.uuid}", "0"):
        found = start._describe(name)
        assert (found.name, found.uuid, found.memory_gib) == ("NVIDIA A10", whole.uuid, 22.49)
    unknown = start._describe("GPU-ffff")
    assert (unknown.name, unknown.uuid, unknown.memory_gib) == ("GPU-ffff", "GPU-ffff", 0.0)


EVALUATES = """
import sys, time, torch
data = torch.utils.data.TensorDataset(torch.randn(16 * int(sys.argv[1]), 4))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for epoch in range(1000):
    model.train()
    for number, (x,) in enumerate(torch.utils.data.DataLoader(data, 16)):
        # As if workers had to be started.
        time.sleep(0.5 if epoch and not number else 0.01)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    time.sleep(float(sys.argv[2]))
"""


class Requests:
    """Requests for so many windows; the last one is withdrawn after so many seconds."""

    may_be_examined = False

    def __init__(self, count: int, seconds: float = math.inf) -> None:
        self._count, self._seconds, self._asked_at = count, seconds, 0.0

    def wait(self, windows: list[Window]) -> bool:
        self._asked_at = time.monotonic()
        return len(windows) < self._count

    @property
    def is_withdrawn(self) -> bool:
        return time.monotonic() - self._asked_at > self._seconds


def in_turns(tmp_path: Path, steps: int, evaluation: float, requests: Requests) -> Measurement:
    (tmp_path / "train.py").write_text(EVALUATES)
    command = tuple(map(literal, (sys.executable, "train.py", str(steps), str(evaluation))))
    plan = dataclasses.replace(PLAN, window_seconds=1.0, repeats=100, cap_seconds=math.inf, diagnose=False)
    with job_outside_a_sweep(Script(command=command, folder=str(tmp_path)), plan) as job:
        return under_test.run(job, SilentProgress(), requests)


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "is_seen"), [(700, False), pytest.param(60, True, marks=pytest.mark.soak)])
def test_a_turn_in_which_a_rare_evaluation_ends_begins_anew(tmp_path: Path, steps: int, is_seen: bool):
    """Where evaluations are frequent, the first step after each of them is part of the speed."""
    found = in_turns(tmp_path, steps, 0.7, Requests(12 if steps > 100 else 4))
    slowest = max(window.seconds / window.steps for window in found.windows)
    assert (slowest > 0.014) is is_seen


@pytest.mark.slow
def test_a_turn_that_is_withdrawn_in_an_evaluation_ends(tmp_path: Path):
    began = time.monotonic()
    found = in_turns(tmp_path, 300, 60.0, Requests(100, 2.0))
    assert found.windows
    assert time.monotonic() - began < 30
