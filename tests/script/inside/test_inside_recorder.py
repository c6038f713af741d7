"""What a record has of steps that a GradScaler scales or skips."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hearing import run

from sweeper.script import inside
from sweeper.script.inside import FOLDER_VARIABLE
from sweeper.script.inside.recorder import Recorder


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    made = Recorder(torch, SimpleNamespace(send=lambda message: None))
    yield made
    made.points.fail(ValueError("the end of the test"))
    if made._file is not None:
        made._file.close()


SAVES_ITS_MODEL = """
import io, json, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(16, 4)
for epoch in range(3):
    model.train()
    for _ in range(4):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        model(x)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copy = torch.load(file, weights_only=False)
    print(json.dumps([copy(x).sum().item(), model(x).sum().item(), sorted(vars(copy)) == sorted(vars(
        torch.nn.Sequential()))]))
"""


@pytest.mark.parametrize("mode", [inside.WATCH, "apart", inside.RECORD])
def test_a_script_may_save_its_model_whole(tmp_path: Path, mode: str):
    is_apart, command = mode == "apart", [sys.executable, "-c", SAVES_ITS_MODEL]
    done = run(command, mode=inside.WATCH if is_apart else mode, folder=tmp_path, takes_apart=is_apart)
    assert done.status == 0, done.errors
    saved = [json.loads(line) for line in done.output.splitlines()]
    assert [(copied == own, is_bare) for copied, own, is_bare in saved] == [(True, True)] * 3
    if mode == inside.RECORD:
        (record,) = tmp_path.glob("record-*.jsonl")
        outputs = [line for line in record.read_text().splitlines() if '"output"' in line]
        assert len(outputs) >= 3


def stepped(
    recorder: Recorder, scale: float | None, found_inf: float, tmp_path: Path
) -> list[dict[str, Any]]:
    """Returns the record of one step as a fused optimizer takes it, whose gradient is (3, 4)."""
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    parameter.grad = torch.tensor([3.0, 4.0]) * (scale or 1.0)
    if scale is not None:
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(scale), torch.tensor(found_inf)
    recorder.step_begins(optimizer)
    recorder.step_ended(optimizer)
    found = tmp_path / "record-0.jsonl"
    lines = found.read_text().splitlines() if found.exists() else []
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("scale", [None, 65536.0])
def test_gradients_are_recorded_without_their_scale(recorder: Recorder, tmp_path: Path, scale: float | None):
    gradients, step = stepped(recorder, scale, 0.0, tmp_path)
    assert (gradients["norm"], gradients["norms"]) == (5.0, [5.0])
    assert gradients["sums"][0][0] == 5.0
    assert step["step"] == 1


def test_a_step_that_is_skipped_is_none(recorder: Recorder, tmp_path: Path):
    assert stepped(recorder, 65536.0, 1.0, tmp_path) == []
    assert stepped(recorder, 65536.0, 0.0, tmp_path)[-1]["step"] == 1
