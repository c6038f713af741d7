"""What a trial of a script touches: its own folder, and nothing else that a trial before it left."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
from scripts import PLAN, job_of

from sweeper.core.measurement import Measurement
from sweeper.core.progress import SilentProgress
from sweeper.core.script import Script
from sweeper.script.run import trial
from sweeper.script.run.start import OFFLINE

BUSY = '''
"""Checkpoints, resumes by itself, logs to trackers, and rewrites its data."""
import importlib.util, os, pathlib, sys
import torch

assert not pathlib.Path("checkpoint.pt").exists(), "another trial's checkpoint"
rows = pathlib.Path("data/rows.txt")
rows.write_text(rows.read_text() + "one more\\n")
pathlib.Path("data/cache").mkdir(exist_ok=False)
if importlib.util.find_spec("wandb"):
    import wandb
    wandb.init(project="mine")
if importlib.util.find_spec("tensorboard"):
    from torch.utils.tensorboard import SummaryWriter
    SummaryWriter().add_scalar("loss", 1.0, 0)
import mlflow
mlflow.set_experiment("mine")
mlflow.start_run()
mlflow.log_metric("loss", 1.0)
model = torch.nn.Linear(20, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(3200, 20)), batch_size=32)
while True:
    for (x,) in loader:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.save(model.state_dict(), "checkpoint.pt")
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "rows.txt").write_text("one\n")
    (folder / "train.py").write_text(BUSY)
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


@pytest.mark.soak
@pytest.mark.parametrize("num_trials", [2, 10])
def test_a_script_that_logs_and_resumes_leaves_nothing_behind(folder, tmp_path, monkeypatch, num_trials: int):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking.invalid:5000")
    monkeypatch.setenv("WANDB_MODE", "online")
    # In its place, files would be seen.
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    before = files(folder)
    script = Script(command=(sys.executable, "train.py"))
    for number in range(num_trials):
        place = tmp_path / f"trial-{number}"
        job = job_of(
            script, {}, dataclasses.replace(PLAN, diagnose=number == num_trials - 1), folder=str(place)
        )
        job = dataclasses.replace(job, script=dataclasses.replace(script, folder=str(folder)))
        found = trial.run(job, SilentProgress())
        assert isinstance(found, Measurement)
        assert [each.name for each in place.iterdir()] == ["script.json"]
    assert found.diagnosis is not None
    assert found.diagnosis.outside == ()
    assert files(folder) == before
    seen = [each for each in (tmp_path / "home").rglob("*") if each.is_file() and "cache" not in str(each)]
    assert seen == []


def test_a_script_may_be_online_where_it_says_so(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking.invalid:5000")
    own = {"WANDB_MODE": "online", "HF_HUB_OFFLINE": "0"}
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "names.py").write_text(
        "import os, time\n"
        f"print({{name: os.environ.get(name) for name in {[*OFFLINE, 'MLFLOW_TRACKING_URI']!r}}})\n"
        "for step in range(1, 200): print('step', step); time.sleep(0.02)\n"
    )
    place = str(tmp_path / "trial")
    job = job_of(Script(command=(sys.executable, "names.py"), env=own), {"batch_size": 32}, folder=place)
    assert job.script is not None
    script = dataclasses.replace(job.script, folder=str(tmp_path / "own"), samples_per_step="32")
    assert isinstance(trial.run(dataclasses.replace(job, script=script), SilentProgress()), Measurement)
    said = capfd.readouterr().out
    assert "'WANDB_MODE': 'online', 'HF_HUB_OFFLINE': '0', 'CLEARML_OFFLINE_MODE': '1'" in said
    assert "'MLFLOW_TRACKING_URI': None" in said
