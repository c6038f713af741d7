"""Gradients that ranks exchange once a step, where a step has several backward passes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
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

def train(rank, is_changed, store, loop, options):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    messages = []
    if is_changed:
        apply(torch, "exchange=once", messages.append)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
    model = DistributedDataParallel(model, **options)
    exchanges = 0
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    draws = torch.Generator().manual_seed(rank)
    losses = []

    def backward(divisor=4):
        nonlocal exchanges
        loss = nn.functional.mse_loss(model(torch.randn(6, 8, generator=draws)), torch.ones(6, 1)) / divisor
        exchanges += model.require_backward_grad_sync
        loss.backward()
        losses.append(loss.item())

    def step():
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()

    exec(loop, {**globals(), **locals()})
    return {
        "losses": losses, "exchanges": exchanges,
        "weights": [p.sum().item() for p in model.parameters()],
        "messages": [message["change"] for message in messages],
    }

# Each rank is a fork: torch is imported once for all of them.
def trained(loop, options, folder):
    pipes = []
    for is_changed in (False, True):
        for rank in range(2):
            reading, writing = os.pipe()
            if os.fork() == 0:
                said = train(rank, is_changed, f"{folder}/{is_changed}", loop, options)
                os.write(writing, json.dumps(said).encode())
                # At the end of the interpreter, threads of gloo may end it by a signal.
                os._exit(0)
            os.close(writing)
            pipes.append(reading)
    return [json.loads(open(pipe).read()) for pipe in pipes]

for line in sys.stdin:
    case = json.loads(line)
    print(json.dumps(trained(case["loop"], case["options"], case["folder"])), flush=True)
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
    if rank == 0:
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


class Trainer:
    """A process that trains in ranks, again and again."""

    def __init__(self, folder: Path) -> None:
        path = folder / "train.py"
        path.write_text(TRAIN)
        self.process = subprocess.Popen(
            ["env", "GLOO_SOCKET_IFNAME=lo", sys.executable, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def trained(self, folder: Path, loop: str, options: dict[str, bool]) -> tuple[list[dict], list[dict]]:
        """Returns what two ranks say, as the script is and changed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"loop": loop, "options": options, "folder": str(folder)}) + "\n")
        self.process.stdin.flush()
        ranks = json.loads(self.process.stdout.readline())
        return ranks[:2], ranks[2:]


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    trainer = Trainer(tmp_path_factory.mktemp("trainer"))
    yield trainer
    trainer.process.communicate(timeout=100)


def is_equal(before: list[dict], after: list[dict]) -> bool:
    return all(
        rank[key] == pytest.approx(was[key], rel=1e-4, abs=1e-6)
        for was, rank in zip(before, after, strict=True)
        for key in ("losses", "weights")
    )


def test_ranks_exchange_once_a_step_and_train_the_same(trainer: Trainer, tmp_path: Path) -> None:
    before, after = trainer.trained(tmp_path, ACCUMULATED, {})
    assert is_equal(before, after)
    assert after[0]["weights"] == after[1]["weights"]
    # Of three epochs, the first three steps show the number of passes; steps of two are averaged apart.
    assert before[0]["exchanges"] == 54
    assert after[0]["exchanges"] == 3 * 4 + 9
    assert after[0]["messages"] == [{"name": "exchange", "applied": True, "why": ""}]


def test_a_pass_forward_that_is_not_followed_by_one_backward_loses_nothing(
    trainer: Trainer, tmp_path: Path
) -> None:
    before, after = trainer.trained(tmp_path, WITHOUT_BACKWARD, {})
    assert is_equal(before, after)
    assert after[0]["weights"] == after[1]["weights"]
    assert after[0]["messages"][0]["applied"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loop", "options", "why"),
    [
        (BY_HAND, {}, "the script does so itself"),
        (SINGLE, {}, "each of its steps has one backward pass"),
        (IRREGULAR, {}, "its first steps have 2, 3, 2 backward passes"),
        (SEVERAL, {}, "the script trains several models in parallel"),
        (HOOK + ACCUMULATED, {}, "the script has its own way to exchange gradients"),
        (ACCUMULATED, {"find_unused_parameters": True}, "the script sets find_unused_parameters"),
    ],
    ids=["by_hand", "single", "irregular", "several", "hook", "unused_parameters"],
)
def test_others_are_left_alone(
    trainer: Trainer, tmp_path: Path, loop: str, options: dict[str, bool], why: str
) -> None:
    before, after = trainer.trained(tmp_path, loop, options)
    assert is_equal(before, after)
    assert before[0]["exchanges"] == after[0]["exchanges"]
    assert after[0]["messages"] == [{"name": "exchange", "applied": False, "why": why}]


def test_it_is_for_ranks_that_accumulate() -> None:
    accumulating = {"ranks": 2, "accumulate_steps": 4}
    assert Exchange().refusal("once", accumulating) == ""
    for facts, why in (({"ranks": 1}, "one process"), ({"accumulate_steps": 1}, "one batch")):
        assert why in Exchange().refusal("once", {**accumulating, **facts})
    assert "compiles" in Exchange().refusal("once", {**accumulating, "compiled": True})
