"""Rows that are kept on the GPU: the same batches, gathered there, if they fit beside the model."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import strict_cuda
from hearing import Run, run

from sweeper.script.changes import CHANGES, CHANGES_VARIABLE
from sweeper.script.changes.rows.on_device import FIRST_BATCHES

TRAINING = """
import sys, types
strict_cuda = sys.modules["strict_cuda"] = types.ModuleType("strict_cuda")
exec(compile(open({stand_in!r}).read(), "<strict_cuda>", "exec"), vars(strict_cuda))
cuda = strict_cuda.StrictCuda().__enter__()
import json, torch
from torch.utils.data import DataLoader, TensorDataset

torch.cuda.mem_get_info = lambda *_: ({free}, 2**34)
torch.manual_seed(0)
rows = TensorDataset(torch.randn(60, 4), torch.arange(60))
loader = DataLoader(rows, batch_size=6, shuffle=True, pin_memory={pin})
model = torch.nn.Linear(4, 1)
if {trains}:
    model = model.to("cuda")
optimizer = torch.optim.SGD(model.parameters(), 0.01)
where, seen, losses = [], [], []
for _ in range(2):
    for x, y in loader:
        where.append(x.device.type)
        if {trains}:
            x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
        loss = (model(x)[:, 0] - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(y.cpu().tolist())
        losses.append(loss.item().hex())
print(json.dumps({{"where": where, "seen": seen, "losses": losses, "draw": torch.rand(1).item()}}))
"""


def trained(changes: str = "", **values: Any) -> Run:
    options = {"stand_in": strict_cuda.__file__, "free": 2**33, "pin": False, "trains": True, **values}
    command = [sys.executable, "-c", TRAINING.format(**options)]
    found = run(command, {CHANGES_VARIABLE: changes}, is_forked=False)
    assert found.status == 0, found.errors
    return found


def said(found: Run) -> list[dict[str, Any]]:
    return [message["change"] for message in found.messages if "change" in message]


@pytest.mark.slow
@pytest.mark.parametrize("pin", [False, True], ids=["plain", "pinned"])
def test_batches_come_from_the_gpu_and_the_training_is_equal_in_every_bit(pin: bool):
    plain, found = trained(pin=pin).truth, trained("loader=on_device", pin=pin)
    assert found.truth["where"] == ["cpu"] * FIRST_BATCHES + ["cuda"] * (20 - FIRST_BATCHES)
    for what in ("seen", "losses", "draw"):
        assert found.truth[what] == plain[what]
    assert said(found) == [{"name": "loader", "applied": True, "why": ""}]


def test_rows_that_do_not_fit_beside_the_model_stay_on_the_host_and_say_how_much_they_take():
    found = trained("loader=on_device", free=1000)
    assert found.truth["where"] == ["cpu"] * 20
    (change,) = said(found)
    assert not change["applied"]
    assert change["why"] == (
        "its rows take 0.00 GiB, more than 0.00 GiB, 80% of what the training leaves free on the GPU"
    )


def test_a_training_that_does_not_use_the_gpu_is_left_alone():
    found = trained("loader=on_device", trains=False)
    assert found.truth["where"] == ["cpu"] * 20
    assert said(found) == []


def test_it_is_offered_where_a_gpu_trains_before_a_gathered_loader_and_not_written_into_the_source():
    change = CHANGES["loader"]
    assert change.choices[:2] == ("on_device", "gathered")
    assert change.refusal("on_device", {"num_workers": 0, "device": "cpu"}) == "it does not train on a GPU"
    assert change.refusal("on_device", {"num_workers": 0, "device": "cuda"}) == ""
