"""Gradients that ranks exchange once a step, where a step has several backward passes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sweeper.script.changes.exchange import Exchange

TRAIN = """
import copy, io, json, os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from sweeper.script.changes import apply

RANK, CHANGED, STORE = int(sys.argv[1]), sys.argv[2] == "changed", sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{STORE}", rank=RANK, world_size=2)
messages = []
if CHANGED:
    apply(torch, "exchange=once", messages.append)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
model = DistributedDataParallel(model, **OPTIONS)
exchanges = 0
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
draws = torch.Generator().manual_seed(RANK)
losses = []

def backward(divisor=4):
    global exchanges
    loss = nn.functional.mse_loss(model(torch.randn(6, 8, generator=draws)), torch.ones(6, 1)) / divisor
    exchanges += model.require_backward_grad_sync
    loss.backward()
    losses.append(loss.item())

def step():
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()

LOOP
print(json.dumps({
    "losses": losses, "exchanges": exchanges,
    "weights": [p.sum().item() for p in model.parameters()],
    "messages": [message["change"] for message in messages],
}), flush=True)
# At the end of the interpreter, threads of gloo may end it by a signal.
os._exit(0)
"""
ACCUMULATED = """
for epoch in range(3):
    # The last step of an epoch has two batches.
    for batch in range(18):
        backward()
        if batch % 4 == 3 or batch == 17:
            step()
    with torch.no_grad():
        model.eval()
        # Ranks evaluate with the buffers of rank 0, and may compute more than others.
        losses.append(model(torch.ones(2, 8)).sum().item())
        model.train()
    if RANK == 0:
        model.module(torch.ones(2, 8))
    torch.save(copy.deepcopy(model), io.BytesIO())
"""
BY_HAND = """
for _ in range(5):
    with model.no_sync():
        backward()
    backward()
    step()
"""
SINGLE = """
for _ in range(5):
    backward()
    step()
"""
IRREGULAR = """
for number in (2, 3, 2, 3):
    for _ in range(number):
        backward()
    step()
"""
WITHOUT_BACKWARD = """
for number in range(8):
    for _ in range(2 if number == 5 else 3):
        backward()
    if number == 5:
        model(torch.ones(2, 8))
    step()
"""
HOOK = """
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
model.register_comm_hook(None, allreduce_hook)
"""
SEVERAL = "other = DistributedDataParallel(nn.Linear(2, 2))" + ACCUMULATED


def trained(folder: Path, loop: str, options: str = "{}") -> tuple[list[dict], list[dict]]:
    """Returns what two ranks say, as the script is and changed."""
    path = folder / "train.py"
    path.write_text(TRAIN.replace("**OPTIONS", f"**{options}").replace("LOOP", loop))
    results = []
    for mode in ("original", "changed"):
        ranks = [
            subprocess.Popen(
                ["env", "GLOO_SOCKET_IFNAME=lo", sys.executable, path, str(rank), mode, folder / mode],
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        results.append([json.loads(rank.communicate(timeout=100)[0].splitlines()[-1]) for rank in ranks])
    return results[0], results[1]


def is_equal(before: list[dict], after: list[dict]) -> bool:
    return all(
        rank[key] == pytest.approx(was[key], rel=1e-4, abs=1e-6)
        for was, rank in zip(before, after, strict=True)
        for key in ("losses", "weights")
    )


def test_ranks_exchange_once_a_step_and_train_the_same(tmp_path: Path) -> None:
    before, after = trained(tmp_path, ACCUMULATED)
    assert is_equal(before, after)
    assert after[0]["weights"] == after[1]["weights"]
    # Of three epochs, the first three steps show the number of passes; steps of two are averaged apart.
    assert before[0]["exchanges"] == 54
    assert after[0]["exchanges"] == 3 * 4 + 9
    assert after[0]["messages"] == [{"name": "exchange", "applied": True, "why": ""}]


def test_a_pass_forward_that_is_not_followed_by_one_backward_loses_nothing(tmp_path: Path) -> None:
    before, after = trained(tmp_path, WITHOUT_BACKWARD)
    assert is_equal(before, after)
    assert after[0]["weights"] == after[1]["weights"]
    assert after[0]["messages"][0]["applied"]


@pytest.mark.parametrize(
    ("loop", "options", "why"),
    [
        (BY_HAND, "{}", "the script does so itself"),
        pytest.param(SINGLE, "{}", "each of its steps has one backward pass", marks=pytest.mark.soak),
        (IRREGULAR, "{}", "its first steps have 2, 3, 2 backward passes"),
        pytest.param(SEVERAL, "{}", "the script trains several models in parallel", marks=pytest.mark.soak),
        (HOOK + ACCUMULATED, "{}", "the script has its own way to exchange gradients"),
        pytest.param(
            ACCUMULATED,
            "{'find_unused_parameters': True}",
            "the script sets find_unused_parameters",
            marks=pytest.mark.soak,
        ),
    ],
    ids=["by_hand", "single", "irregular", "several", "hook", "unused_parameters"],
)
def test_others_are_left_alone(tmp_path: Path, loop: str, options: str, why: str) -> None:
    before, after = trained(tmp_path, loop, options)
    assert is_equal(before, after)
    assert before[0]["exchanges"] == after[0]["exchanges"]
    assert after[0]["messages"] == [{"name": "exchange", "applied": False, "why": why}]


def test_it_is_for_ranks_that_accumulate() -> None:
    accumulating = {"ranks": 2, "accumulate_steps": 4}
    assert Exchange().refusal("once", accumulating) == ""
    for facts, why in (({"ranks": 1}, "one process"), ({"accumulate_steps": 1}, "one batch")):
        assert why in Exchange().refusal("once", {**accumulating, **facts})
    assert "compiles" in Exchange().refusal("once", {**accumulating, "compiled": True})
