"""What a training does between its steps: the starts of passes, and checkpoints."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hearing import run

TRAIN = """
import time
import torch
from torch.utils.data import DataLoader, TensorDataset

class Slow:
    def __reduce__(self):
        time.sleep(0.1)
        return (int, ())

class Rows(TensorDataset):
    pass

def begin(worker):
    time.sleep(0.2)

rows = Rows(torch.randn(60, 3), torch.randn(60, 1))
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
options = dict(num_workers={workers}, worker_init_fn=begin, persistent_workers={persistent})
loader = DataLoader(rows, batch_size=6, **options)
held_out = DataLoader(rows, batch_size=30)
for epoch in range(4):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    if {evaluates}:
        model.eval()
        with torch.no_grad():
            for x, y in held_out:
                time.sleep(0.05)
                model(x)
        {in_pause}
        model.train()
    {after}
"""
SAVE = "torch.save([Slow(), model.state_dict()], 'checkpoint.pt')"


def trained(
    tmp_path: Path, *, workers: int = 0, persistent: bool = False, evaluates: bool = False, **places: str
) -> dict[str, Any]:
    options = {"in_pause": "pass", "after": "pass", **places}
    text = TRAIN.format(workers=workers, persistent=persistent, evaluates=evaluates, **options)
    (tmp_path / "train.py").write_text(text)
    done = run([sys.executable, str(tmp_path / "train.py")], folder=tmp_path)
    assert done.status == 0, done.errors
    return next(message for message in reversed(done.messages) if "between" in message)


def test_passes_after_the_first_are_counted_with_the_start_of_their_workers(tmp_path: Path) -> None:
    between = trained(tmp_path, workers=1)["between"]
    assert (between["passes"], between["batches"]) == (3, 10)
    assert between["pass_s"] >= 3 * 0.2


def test_workers_that_live_on_begin_a_pass_at_once(tmp_path: Path) -> None:
    between = trained(tmp_path, workers=1, persistent=True)["between"]
    assert between["passes"] == 3
    # Otherwise, each would take 0.2 s to start them.
    assert between["pass_s"] < 0.5


def test_an_evaluation_is_no_start_of_a_pass(tmp_path: Path) -> None:
    message = trained(tmp_path, evaluates=True)
    between = message["between"]
    assert between["passes"] == 3
    # An evaluation takes 0.1 s.
    assert between["pass_s"] < 0.25
    assert message["paused"] >= 4 * 0.1


# What follows the last step is no longer reported, unless it is in a pause.
@pytest.mark.parametrize(("place", "count"), [("after", 3), ("in_pause", 4)])
def test_checkpoints_are_counted_with_their_line(tmp_path: Path, place: str, count: int) -> None:
    message = trained(tmp_path, evaluates=True, **{place: SAVE})
    between = message["between"]
    assert between["saves"] == count
    assert count * 0.1 <= between["save_s"] <= count * 0.3
    assert between["paused_save_s"] == pytest.approx(between["save_s"] if place == "in_pause" else 0.0)
    path, _, line = message["saved_at"].rpartition(":")
    assert Path(path) == tmp_path / "train.py"
    assert SAVE in (tmp_path / "train.py").read_text().splitlines()[int(line) - 1]


def test_a_training_without_a_loader_has_nothing_between(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\nmodel = torch.nn.Linear(3, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(20):\n    model(torch.ones(2, 3)).sum().backward()\n    optimizer.step()\n"
    )
    done = run([sys.executable, str(tmp_path / "train.py")], folder=tmp_path)
    (latest,) = [message["between"] for message in done.messages if "between" in message][-1:]
    assert set(latest.values()) == {0}
