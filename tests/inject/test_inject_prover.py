"""What a record has of steps that a GradScaler scales or skips."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sweeper.inject import FOLDER_VARIABLE
from sweeper.inject.prover import Prover


@pytest.fixture
def prover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Prover]:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    made = Prover(torch, SimpleNamespace(send=lambda message: None))
    yield made
    made.points.fail(ValueError("the end of the test"))
    if made._file is not None:
        made._file.close()


def stepped(prover: Prover, scale: float | None, found_inf: float, tmp_path: Path) -> list[dict[str, Any]]:
    """Returns the record of one step as a fused optimizer takes it, whose gradient is (3, 4)."""
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    parameter.grad = torch.tensor([3.0, 4.0]) * (scale or 1.0)
    if scale is not None:
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(scale), torch.tensor(found_inf)
    prover.step_begins(optimizer)
    prover.step_ended(optimizer)
    found = tmp_path / "proof-0.jsonl"
    lines = found.read_text().splitlines() if found.exists() else []
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("scale", [None, 65536.0])
def test_gradients_are_recorded_without_their_scale(prover: Prover, tmp_path: Path, scale: float | None):
    gradients, step = stepped(prover, scale, 0.0, tmp_path)
    assert (gradients["norm"], gradients["norms"]) == (5.0, [5.0])
    assert gradients["sums"][0][0] == 5.0
    assert step["step"] == 1


def test_a_step_that_is_skipped_is_none(prover: Prover, tmp_path: Path):
    assert stepped(prover, 65536.0, 1.0, tmp_path) == []
    assert stepped(prover, 65536.0, 0.0, tmp_path)[-1]["step"] == 1
