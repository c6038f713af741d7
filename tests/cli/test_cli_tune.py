"""`sweeper tune` and `sweeper exec`: a script that nobody edits, made faster and proved."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest
import yaml
from measurements import measurement

from sweeper.cli import exec as exec_command
from sweeper.cli.exec import differences
from sweeper.core.config import TrialConfig
from sweeper.core.job import Job, write_job
from sweeper.core.script import Script
from sweeper.errors import EnvironmentStopError
from sweeper.script import inside
from sweeper.script.changes.change import CLOSE, EXACT
from sweeper.sweep.folder.fingerprint import digest_of_scripts
from sweeper.sweep.observer import QuietObserver
from sweeper.tuning.changes import ChangeValue
from sweeper.tuning.handover import command_of
from sweeper.tuning.options import TuneOptions
from sweeper.tuning.tune import Tune

SCRIPT = """
import torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __init__(self):
        self.x = torch.randn(20000, 30, generator=torch.Generator().manual_seed(1)).numpy()
    def __len__(self):
        return len(self.x)
    def __getitem__(self, index):
        row = torch.tensor([float(value) for value in self.x[index] for _ in range(20)][::20])
        return row, row[:1]

model = torch.nn.Linear(30, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
loader = DataLoader(Rows(), batch_size=32, shuffle=True)
for epoch in range({epochs}):
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {{loss.item()!r}}")
"""


@pytest.mark.soak
def test_a_faster_script_is_patched_without_sweeper(sweeper, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(epochs=1000))
    done = sweeper("tune", "--minutes", "2", "--", sys.executable, "train.py", timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    patched = sweeper("export", "tune-train", "--format", "patch", timeout=300)
    assert patched.returncode == 0, patched.stdout + patched.stderr
    assert "The patched script, without sweeper: " in patched.stdout
    made = tmp_path / "mlruns" / "sweeps" / "tune-train" / "best.patch"
    patch = made.read_text()
    assert "+class InMemoryDataset(torch.utils.data.Dataset):" in patch
    assert "sweeper" not in patch
    subprocess.run(["git", "apply", "--unsafe-paths", made], cwd=tmp_path, check=True)
    subprocess.run([sys.executable, "-m", "py_compile", path], check=True)


@pytest.mark.alone
@pytest.mark.slow
def test_a_script_is_made_faster_and_runs_so(sweeper, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(epochs=1000))
    command = ("tune", "--minutes", "0.7", "--", sys.executable, "train.py")
    folder = tmp_path / "mlruns" / "sweeps" / "tune-train"
    done = sweeper(*command, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    first, *_ = (line for line in done.stdout.splitlines() if " s  So far " in line)
    assert "equal in every bit over 60 steps: " in first
    assert "loader gathered" in first
    assert "Verified together: " in done.stdout
    assert "The loss was not compared" not in done.stdout
    winner = json.loads((folder / "result.json").read_text())["winner"]
    verified = json.loads((folder / "trials" / f"{winner:04d}" / "verification.json").read_text())
    assert {"loader": "gathered"}.items() <= {c["name"]: c["value"] for c in verified["changes"]}.items()
    assert verified["difference"] == ""
    again = sweeper(*command)
    assert again.returncode == 0
    assert "already finished" in again.stdout
    assert "So far" not in again.stdout
    path.write_text(
        SCRIPT.format(epochs=1).replace("import torch\n", "import torch\ntorch.manual_seed(7)\n", 1)
    )
    plain = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True)
    best = str(folder / "best.yaml")
    made = sweeper("exec", best, "--", sys.executable, "train.py")
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith("loss ")
    if verified["kind"] == "exact":
        assert made.stdout == plain.stdout
    assert "the script has changed since it was verified and measured" in made.stderr


def wait_for(process: subprocess.Popen[str], pattern: str) -> None:
    """Waits for a line."""
    assert process.stdout is not None
    next(line for line in process.stdout if re.search(pattern, line))


@pytest.mark.alone
@pytest.mark.slow
def test_a_tune_that_is_killed_goes_on_and_hands_over_the_best_so_far_when_it_is_stopped(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT.format(epochs=1000))
    words = [sys.executable, "-m", "sweeper", "tune", "--minutes", "3", "--", sys.executable, "train.py"]
    folder = tmp_path / "mlruns" / "sweeps" / "tune-train"
    outcome = r" s  .*loader gathered.*: [\d.]+x \["
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as first:
        wait_for(first, outcome)
        first.kill()
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as second:
        wait_for(second, "Continuing `tune-train`")
        # What is known already is said again, from the log.
        wait_for(second, outcome)
        wait_for(second, r"\(racing .* so far")
        second.send_signal(signal.SIGINT)
        began = time.monotonic()
        second.communicate()
    assert second.returncode == 130
    assert time.monotonic() - began < 5
    assert yaml.safe_load((folder / "best.yaml").read_text())["changes"]["loader"] == "gathered"
    log = [json.loads(line) for line in (folder / "races" / "first" / "race.jsonl").read_text().splitlines()]
    # The stack is not tried again.
    arms = [event["members"] for event in log if event["event"] == "arm"]
    assert len(arms) == len({tuple(members) for members in arms})
    assert not [pid for pid in psutil.pids() if str(tmp_path) in " ".join(_command(pid))]


def _command(pid: int) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).cmdline()
    return []


def test_a_file_of_changes_must_exist(sweeper, tmp_path):
    (tmp_path / "train.py").write_text("")
    done = sweeper("tune", "--changes", "no.py", "--", sys.executable, "train.py")
    assert done.returncode == 2
    assert "`--changes` must be a Python file, but 'no.py' is not." in done.stderr


@pytest.mark.slow
def test_a_script_that_does_not_train_cannot_be_tuned(sweeper, tmp_path):
    (tmp_path / "train.py").write_text("raise SystemExit('no data')")
    done = sweeper("tune", "--", sys.executable, "train.py")
    assert done.returncode == 1
    assert "no data" in done.stdout


def test_a_script_must_exist(sweeper):
    done = sweeper("tune", "--", sys.executable, "no.py")
    assert done.returncode == 2
    assert "the command must name an existing script, but 'no.py' is not in" in done.stderr


def test_a_wrong_name_is_said_before_anything_is_watched(in_process, tmp_path):
    (tmp_path / "train.py").write_text("")
    done = in_process("tune", "--name", "../my tune", "--", sys.executable, "train.py")
    assert done.returncode == 2
    assert "`name` must be 1 to 128 letters" in done.stderr
    assert not (tmp_path / "mlruns").exists()


def test_a_dry_run_says_what_would_be_tried_and_ends(tmp_path, monkeypatch, in_process):
    (tmp_path / "train.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sweeper.tuning.tune.watch", lambda *_, **__: measurement())
    changes = [
        ChangeValue(name="loader", value="gathered", kind=EXACT),
        ChangeValue(name="threads", value="one", kind=CLOSE, refused="it has none"),
    ]
    monkeypatch.setattr("sweeper.tuning.tune.changes_of", lambda *_: changes)
    done = in_process("tune", "--dry-run", "--", sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    *_, threads, last = done.stdout.splitlines()
    assert threads == "  threads one: not tried because it has none"
    assert last == "A race would try loader gathered."
    assert not (tmp_path / "mlruns" / "sweeps").exists()


@pytest.mark.alone
@pytest.mark.soak
def test_options_and_batches_are_searched_on_top_of_the_changes_that_won(sweeper, tmp_path):
    text = SCRIPT.format(epochs=1000).replace("import torch\n", FLAGS, 1)
    (tmp_path / "train.py").write_text(text.replace("batch_size=32", "batch_size=flags.batch_size"))
    words = ("--minutes", "2", "--", sys.executable, "train.py", "--batch-size", "32")
    done = sweeper("tune", "--with-flags", *words, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Searching batch_size on top" in done.stdout
    spec = yaml.safe_load((tmp_path / "mlruns/sweeps/tune-train-flags/sweep.yaml").read_text())["spec"]
    assert spec["script"]["changes"]["loader"] == "gathered"
    assert spec["constraints"]["val_loss"]["max_ratio_to_baseline"] == 1.02
    assert (tmp_path / "mlruns" / "sweeps" / "tune-train" / "best.yaml").exists()


FLAGS = """import argparse
import torch
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
flags = parser.parse_args()
"""


def test_a_home_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "sweeps").write_text("mine")
    options = TuneOptions(command=("python", "train.py"), name="tune-train", home=tmp_path)
    with pytest.raises(EnvironmentStopError, match="Move away the file"):
        Tune(options, QuietObserver()).run()


def test_the_command_to_use_has_the_winners_own_options(tmp_path):
    script = Script(command=("python", "train.py", "--bs", "{batch_size}"))
    write_job(tmp_path, Job(uid="u", script=script, config=TrialConfig(args={"batch_size": 256})))
    assert command_of(tmp_path) == ["python", "train.py", "--bs", "256"]


def test_exec_needs_the_export_of_a_command(sweeper, tmp_path):
    (tmp_path / "best.yaml").write_text("a: 1\n")
    done = sweeper("exec", "best.yaml", "--", sys.executable, "-c", "print(1)")
    assert done.returncode == 2
    assert "best.yaml" in done.stderr


def test_exec_puts_the_commands_search_path_behind_its_hook(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/replaced")
    value = {"command": ["python"], "changes": {"optimizer": "fused"}, "config": {}, "conditions": {}}
    monkeypatch.setattr(exec_command, "read", lambda path: value)
    monkeypatch.setattr(exec_command, "variables_of", lambda value: {})
    ran = []
    monkeypatch.setattr(os, "execvpe", lambda *arguments: ran.append(arguments))
    exec_command.exec(tmp_path / "best.yaml", ["env", "A=1", "PYTHONPATH=/mine", "no-such-python", "t.py"])
    ((program, words, environment),) = ran
    assert (program, words) == ("env", ["env", "A=1", "no-such-python", "t.py"])
    assert environment["PYTHONPATH"] == f"{inside.SITE}:/mine"


def test_exec_says_what_is_no_longer_as_it_was_proved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text("a = 1\n" * 1000)
    command = ["python", "train.py", "--epochs", "3"]
    # However long the script.
    assert len(digest_of_scripts(command)) == 16
    proved = {"conditions": {}, "verification": {"code": digest_of_scripts(command)}}
    assert list(differences(proved, [*command, "--lr", "1"])) == []
    script.write_text("a = 1  # a comment\n" * 1000)
    assert list(differences(proved, command)) == []
    script.write_text("a = 2\n")
    assert [each.partition(";")[0] for each in differences(proved, command)] == [
        "the script has changed since it was verified and measured"
    ]
    assert "measured with torch 0.1" in next(
        differences({"conditions": {"torch": "0.1"}}, [sys.executable, *command[1:]])
    )
