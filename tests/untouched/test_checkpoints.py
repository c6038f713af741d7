"""A checkpoint of 2 MB that a script resumes from and rewrites each epoch stays the user's."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from runner import sweeper
from snapshot import changes, snapshot

SCRIPT = """
import os
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
rows = TensorDataset(torch.randn(6400, 64), torch.randn(6400, 16))
model = nn.Sequential(nn.Linear(64, 6400), nn.ReLU(), nn.Linear(6400, 16))
optimizer = torch.optim.SGD(model.parameters(), 0.001)
start = 0
if os.path.exists("ckpt/last.pt"):
    state = torch.load("ckpt/last.pt")
    model.load_state_dict(state["model"])
    start = state["epoch"] + 1
    print("resumed after epoch", state["epoch"], flush=True)
for epoch in range(start, start + int(sys.argv[1])):
    for x, y in DataLoader(rows, 64, shuffle=True):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "epoch": epoch}, "ckpt/last.pt")
    with open("log.txt", "a") as log:
        log.write(f"epoch {epoch}\\n")
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder in which the script has trained for an epoch."""
    with tempfile.TemporaryDirectory(prefix="sweeper-test-") as base:
        folder = Path(base) / "project"
        (folder / "ckpt").mkdir(parents=True)
        (folder / "train.py").write_text(SCRIPT)
        subprocess.run([sys.executable, "train.py", "1"], cwd=folder, check=True)
        assert (folder / "ckpt" / "last.pt").stat().st_size > 2e6
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "epochs"),
    [
        (("watch",), 12),
        pytest.param(("tune", "--minutes", "1"), 400, marks=pytest.mark.soak),
    ],
    ids=["watch", "tune"],
)
def test_the_checkpoint_is_the_same(folder: Path, tmp_path: Path, words: tuple[str, ...], epochs: int):
    before = snapshot(folder)
    done = sweeper(folder, tmp_path / "state", *words, "--", sys.executable, "train.py", str(epochs))
    assert changes(before, snapshot(folder)) == []
    assert done.returncode == 0, done.stdout + done.stderr
    if words[0] == "watch":
        log = Path(done.stdout.rsplit("Its output is in ", 1)[1].strip().removesuffix("."))
        assert log.read_text().count("resumed after epoch 0\n") == 2
        log.unlink()


@pytest.mark.soak
def test_what_is_unprotected_is_written(folder: Path, tmp_path: Path):
    before = snapshot(folder)
    words = ("watch", "--unprotected", "ckpt", "--", sys.executable, "train.py", "12")
    done = sweeper(folder, tmp_path / "state", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    names = {line.split(": ")[0] for line in changes(before, snapshot(folder), metadata=False)}
    assert names == {str(folder / "ckpt" / "last.pt")}


def test_a_place_that_is_not_there_costs_a_line(folder: Path, tmp_path: Path):
    done = sweeper(folder, tmp_path, "watch", "--unprotected", "nowhere", "--", sys.executable, "train.py")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "must be a file or a folder, but 'nowhere' does not exist" in done.stderr
