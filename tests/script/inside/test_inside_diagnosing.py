"""A step taken apart: its phases are all of the wall, and every part is reported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hearing import run

EVALUATION_SECONDS = 0.01
SCRIPT = """
import time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.Adam(model.parameters())
data = TensorDataset(torch.randn(640, 32), torch.randn(640, 1))
end = time.perf_counter() + {seconds}
while time.perf_counter() < end:
    for x, y in DataLoader(data, 64, shuffle=True):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep({pause})
    model.eval()
    with torch.no_grad():
        model(data.tensors[0])
        time.sleep({evaluation})
    model.train()
"""


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("pause", [pytest.param(0, marks=pytest.mark.soak), 0.002])
def test_the_phases_sum_to_the_wall(tmp_path: Path, pause: float) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(seconds=8, pause=pause, evaluation=EVALUATION_SECONDS))
    found = run([sys.executable, "train.py"], takes_apart=True, folder=tmp_path)
    assert found.status == 0, found.errors
    parts = {each["part"]: each for each in found.messages if "part" in each}
    assert [*parts] == ["as it is", "lines", "one batch", "loader", "halves", "done"]
    whole = parts["as it is"]
    assert sum(whole["wall"].values()) == pytest.approx(whole["seconds"], rel=0.03)
    if pause:
        # The script's own time, in every step.
        assert whole["wall"]["rest"] > 0.9 * pause * whole["steps"]
    # After every ten steps.
    assert whole["wall"]["evaluation"] > 0.9 * EVALUATION_SECONDS * (whole["steps"] // 10 - 1)
    assert parts["one batch"]["samples"] == 64 * parts["one batch"]["steps"]


@pytest.mark.alone
@pytest.mark.soak
def test_a_batch_of_one_is_compared_with_two(tmp_path: Path) -> None:
    script = SCRIPT.format(seconds=8, pause=0, evaluation=0).replace("(data, 64,", "(data, 1,")
    # Its arithmetic is slept, for each sample.
    script = script.replace("model(x), y)", "model(x), y); time.sleep(0.002 + 0.004 * len(x))")
    (tmp_path / "train.py").write_text(script)
    one_thread = {"OMP_NUM_THREADS": "1"}
    found = run([sys.executable, "train.py"], one_thread, takes_apart=True, folder=tmp_path)
    assert found.status == 0, found.errors
    halves = next(each for each in found.messages if each.get("part") == "halves")
    # As if half a sample took half of its 4 ms.
    assert halves["full"] - halves["half"] == pytest.approx(0.002, rel=0.5)


@pytest.mark.slow
def test_a_model_that_is_called_twice_prepares_nothing_in_between(tmp_path: Path) -> None:
    slow = "class Slow(nn.ReLU):\n    def forward(self, x):\n        time.sleep(0.003)\n        return x\n"
    script = SCRIPT.format(seconds=4, pause=0, evaluation=0).replace(
        "model(x), y)", "model(x) + model(x), y)"
    )
    script = script.replace("nn.ReLU()", "Slow()").replace("\nmodel = ", f"\n{slow}\nmodel = ")
    (tmp_path / "train.py").write_text(script)
    found = run([sys.executable, "train.py"], takes_apart=True, folder=tmp_path)
    assert found.status == 0, found.errors
    whole = next(each for each in found.messages if each.get("part") == "as it is")
    assert whole["wall"]["forward"] > 0.9 * 2 * 0.003 * whole["steps"]
    assert whole["wall"]["preparation"] < 0.2 * whole["wall"]["forward"]
