"""`sweeper init`: a file to begin with, which the next commands take, and what it refuses."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scripts import WILD

from sweeper.cli import init as proposing
from sweeper.cli.init import init, init_script
from sweeper.core.measurement import DeviceInfo
from sweeper.errors import UserError
from sweeper.schema import load
from sweeper.script.run import first_look
from sweeper.sweep.job_runner import Slot
from sweeper.sweep.start.setup import Machine

COMMAND = "python train.py --batch-size 64 --hidden-size 128"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    return tmp_path


def test_a_proposal_is_written_and_the_next_commands_take_it(sweeper):
    for name in ("with_argparse.py", "work.py"):
        shutil.copy(WILD / name, name)
    done = sweeper("init", "--command", f"{sys.executable} with_argparse.py --batch-size 16 --steps 5")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].endswith("/s, reported by the meter; start-up " + lines[0].rpartition("start-up ")[2])
    assert lines[1] == "Written to with_argparse.yaml: it searches batch_size, amp."
    assert lines[2] == "Commented out, for you to decide: model.hidden_size, loader.num_workers."
    assert lines[-2:] == ["  sweeper check with_argparse.yaml --deep", "  sweeper run with_argparse.yaml"]
    checked = sweeper(*lines[-2].split()[1:-1])
    assert checked.returncode == 0, checked.stderr
    assert "batch_size: 4 to 256 (log)" in checked.stdout
    # What was watched ran in a mirror.
    assert not Path("model.txt").exists()

    again = sweeper("init", "--command", "python with_argparse.py")
    assert again.returncode == 2
    assert "'with_argparse.yaml'" in again.stderr
    assert "--force" in again.stderr


TRAINING = """
import argparse, torch

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--num-workers", type=int)
parser.add_argument("--dtype", choices=["float32", "bfloat16"])
asked = parser.parse_args()
model = torch.nn.Linear(20, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(3200, 20))
while True:
    for (x,) in torch.utils.data.DataLoader(data, asked.batch_size):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_what_was_watched_fills_in_what_the_command_leaves_open(here, monkeypatch, capsys):
    monkeypatch.setattr(first_look, "LOOK_SECONDS", 0.3)
    Path("train.py").write_text(TRAINING)
    init_script(f"{sys.executable} train.py", None, force=False)
    said = capsys.readouterr().out.splitlines()
    assert "reported by torch (optimizer steps, the loader's batches)" in said[0]
    assert "for you to decide" not in "\n".join(said)
    spec = load(Path("train.yaml"))
    known = ("batch_size", "loader.num_workers", "precision.amp", "device.malloc")
    assert {name: spec.baseline[name] for name in known} == {
        "batch_size": 16,
        "loader.num_workers": 0,
        "precision.amp": "fp32",
        "device.malloc": "default",
    }
    # The batch is searched and a loss was seen, so that it has a limit.
    assert spec.constraints["val_loss"].max_ratio_to_baseline == 1.02
    script = spec.script_in(here)
    assert script is not None
    baseline = spec.baseline_config()
    assert script.variables(baseline.args) == {}
    changed = baseline.replace({"device.malloc": "retain"})
    assert script.variables(changed.args)["MALLOC_MMAP_MAX_"] == "0"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "print('no training here')",
            "it exited with status 0 before its first step; its last line: no training here",
        ),
        (
            "raise OSError('no disk')",
            "it exited with status 1 before its first step; its last line: OSError: no disk",
        ),
        ("import time; time.sleep(60)", "it has not trained after 1 s"),
    ],
)
def test_a_command_that_does_not_train_is_said_so(here, monkeypatch, capsys, text: str, words: str):
    monkeypatch.setattr(first_look, "START_SECONDS", 1.0)
    Path("train.py").write_text(text)
    init_script(f"{sys.executable} train.py --batch-size 8", None, force=False)
    assert words in capsys.readouterr().out
    assert load(Path("train.yaml")).baseline == {"batch_size": 8}


def test_a_command_that_submits_a_job_is_not_run(here, capsys):
    Path("job.sh").touch()
    init_script("sbatch job.sh", None, force=False)
    assert "not run, because `sbatch` starts it elsewhere" in capsys.readouterr().err


def test_a_command_need_not_run(here, capsys):
    Path("train.py").write_text("open('ran', 'w')")
    init_script(f"{sys.executable} train.py --batch-size 8", None, force=False, watch=False)
    assert capsys.readouterr().out.startswith("Written to train.yaml")
    assert load(Path("train.yaml")).space.keys() == {"batch_size"}


def test_a_file_in_the_way_is_kept_without_force(here: Path):
    path = here / "my space.yaml"
    path.write_text("mine")
    with pytest.raises(UserError, match="add --force"):
        init_script(COMMAND, path, force=False)
    assert path.read_text() == "mine"
    init_script(COMMAND, path, force=True)
    assert load(path).baseline == {"batch_size": 64}


def test_a_name_with_a_space_is_quoted_in_the_next_command(here: Path, capsys: pytest.CaptureFixture[str]):
    init_script(COMMAND, Path("my space.yaml"), force=False)
    assert "  sweeper run 'my space.yaml'" in capsys.readouterr().out.splitlines()


def test_a_dash_prints_the_file_and_nothing_else(here: Path, capsys: pytest.CaptureFixture[str]):
    init_script(COMMAND, Path("-"), force=False)
    printed = capsys.readouterr().out
    init_script(COMMAND, None, force=False)
    assert printed == (here / "train.yaml").read_text()
    assert {each.name for each in here.iterdir()} == {"train.py", "train.yaml"}


def test_nothing_to_search_is_said(here: Path, capsys: pytest.CaptureFixture[str]):
    init_script("python train.py", None, force=False)
    said = capsys.readouterr().out
    assert "it searches nothing yet." in said
    assert "In comments" not in said
    assert load(here / "train.yaml").space == {}


@pytest.mark.parametrize("out", [".", "no/such/folder.yaml"])
def test_a_file_that_cannot_be_one_is_refused(here: Path, out: str):
    with pytest.raises(UserError, match="file in a folder that exists"):
        init_script(COMMAND, Path(out), force=True)


def test_a_script_that_is_not_there_is_refused(here: Path):
    with pytest.raises(UserError, match=r"must name an existing script, but 'trian\.py' is not in"):
        init_script("python trian.py --batch-size 64", None, force=False)
    assert [each.name for each in here.iterdir()] == ["train.py"]


def test_a_mistake_is_one_line(in_process):
    done = in_process("init", "--command", "python 'train.py")
    assert done.returncode == 2
    assert done.stderr.startswith("sweeper: `--command` must be a command line")
    assert done.stderr.count("\n") == 1
    assert in_process("init").returncode == 2
    assert not list(Path().iterdir())


PIPELINE = '''\
"""Halves of rows."""
DATA = {"rows": 300}
MODEL = {"width": 4}
SPACE = {"model.width": (4, 8)}

def prepare(data): ...
def build(config, prepared): ...
'''


@pytest.fixture
def halves(here: Path) -> Path:
    path = here / "pipelines" / "halves.py"
    path.parent.mkdir()
    path.write_text(PIPELINE)
    return path


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = DeviceInfo(kind="cpu", name="a CPU")
    monkeypatch.setattr(proposing, "machine_here", lambda: Machine((cpu,), 2, {}, (Slot("cpu"),)))


def test_a_pipelines_space_is_written_after_its_name(
    halves: Path, probed: None, capsys: pytest.CaptureFixture[str]
):
    init(pipeline="halves")
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("Written to halves.yaml, for a CPU: it searches batch_size, loader.kind, ")
    assert said[-2:] == ["  sweeper check halves.yaml --deep", "  sweeper run halves.yaml"]
    spec = load(Path("halves.yaml"))
    assert (spec.name, spec.pipeline) == ("halves", "pipelines.halves")
    assert spec.baseline["model.width"] == 4
    with pytest.raises(UserError, match="add --force"):
        init(pipeline="halves")
    init(pipeline="halves", force=True)


def test_a_dash_prints_a_pipelines_space(halves: Path, probed: None, capsys: pytest.CaptureFixture[str]):
    init(pipeline="halves", out=Path("-"))
    printed = capsys.readouterr().out
    init(pipeline="halves")
    assert printed == Path("halves.yaml").read_text()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, "needs a PIPELINE or a --command, but got neither."),
        ({"pipeline": "halves", "command": COMMAND}, "but got 'halves' and --command."),
        ({"pipeline": "havles"}, "Did you mean `halves`?"),
        ({"pipeline": "train"}, "train must define `prepare` and `build`"),
        ({"pipeline": "halves", "out": Path("no/such/folder.yaml")}, "file in a folder that exists"),
    ],
)
def test_what_is_asked_for_wrongly_is_refused(halves: Path, probed: None, asked: dict[str, Any], words: str):
    with pytest.raises(UserError) as caught:
        init(**asked)
    assert words in str(caught.value)
    assert not list(Path().glob("*.yaml"))


@pytest.mark.slow
def test_a_shipped_pipelines_first_space_checks_and_runs(tmp_path: Path):
    repository = Path(__file__).parents[2]
    path = tmp_path / "first.yaml"

    def sweeper(*arguments: str) -> None:
        command = [sys.executable, "-m", "sweeper", *arguments]
        done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr

    sweeper("init", "tabular", "-o", str(path))
    sweeper("check", str(path))
    changes = (
        *("data.rows=3000", "search.trials=1", "confirm.rounds=0"),
        *("measure.window_seconds=0.05", "measure.warmup_cap_seconds=0.1", "measure.quality_samples=4000"),
        "measure.trace=false",
        *("execution.launcher=inline", "execution.gpus=0", "baseline.loader.num_workers=0"),
    )
    sets = [part for each in changes for part in ("--set", each)]
    sweeper("run", str(path), "--home", str(tmp_path / "home"), *sets)
