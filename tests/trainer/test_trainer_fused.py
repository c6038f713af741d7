"""A fused optimiser's step without the wrapper: the same in every bit, and the wrapper where it is needed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from sweeper.trainer.step.fused import FusedStep

KINDS: dict[str, Any] = {
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=0.1, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, weight_decay=0.1, fused=True),
}


def trained(model: nn.Module, optimizer: Any, step: Any, num_steps: int = 20, first: int = 0) -> None:
    for number in range(first, first + num_steps):
        generator = torch.Generator().manual_seed(number)
        optimizer.zero_grad()
        model(torch.randn(8, 5, generator=generator)).square().mean().backward()
        if number % 7 == 6:
            optimizer.param_groups[0]["lr"] *= 0.5
        step()


def twins(kind: str) -> tuple[nn.Module, Any, nn.Module, Any]:
    one = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    other = copy.deepcopy(one)
    return one, KINDS[kind](one.parameters()), other, KINDS[kind](other.parameters())


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_same_in_every_bit_as_is_its_state(kind: str, monkeypatch: pytest.MonkeyPatch):
    one, theirs, other, ours = twins(kind)
    step = FusedStep(ours)
    trained(one, theirs, theirs.step)
    trained(other, ours, step, 2)
    # Later steps go past the wrapper.
    with monkeypatch.context() as patch:
        patch.setattr(type(ours), "step", lambda self: pytest.fail("the wrapper was called"))
        trained(other, ours, step, 18, first=2)
    assert same(one, other)
    mine, its = ours.state_dict()["state"], theirs.state_dict()["state"]
    assert mine.keys() == its.keys()
    for number, values in its.items():
        for name, value in values.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(mine[number][name])), name


def test_a_state_that_is_loaded_is_gone_on_from():
    one, theirs, other, ours = twins("adam")
    trained(one, theirs, theirs.step, 10)
    kept, weights = copy.deepcopy(theirs.state_dict()), copy.deepcopy(one.state_dict())
    trained(one, theirs, theirs.step, 10, first=10)
    step = FusedStep(ours)
    trained(other, ours, step, 5)
    ours.load_state_dict(kept)
    other.load_state_dict(weights)
    trained(other, ours, step, 10, first=10)
    assert same(one, other)


def test_a_parameter_without_a_gradient_needs_the_wrapper():
    one, theirs, other, ours = twins("adam")
    step = FusedStep(ours)
    trained(one, theirs, theirs.step, 3)
    trained(other, ours, step, 3)
    for model, optimizer, stepping in ((one, theirs, theirs.step), (other, ours, step)):
        optimizer.zero_grad()
        model[2](torch.ones(8, 7)).sum().backward()
        stepping()
    assert same(one, other)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.Adam(p, amsgrad=True, fused=True),
        lambda p: torch.optim.Adam(p, foreach=True),
        lambda p: torch.optim.SGD(p, lr=0.1, fused=True),
        lambda p: torch.optim.Adagrad(p, fused=True),
    ],
)
def test_what_is_special_keeps_the_wrapper(make: Any, monkeypatch: pytest.MonkeyPatch):
    model = nn.Linear(5, 3)
    optimizer = make(model.parameters())
    called: list[int] = []
    whole = type(optimizer).step
    monkeypatch.setattr(type(optimizer), "step", lambda self: (called.append(1), whole(self)))
    trained(model, optimizer, FusedStep(optimizer), 4)
    assert len(called) == 4


def test_a_hook_of_the_optimiser_is_called():
    model = nn.Linear(5, 3)
    optimizer = KINDS["adam"](model.parameters())
    called: list[int] = []
    optimizer.register_step_post_hook(lambda *_: called.append(1))
    trained(model, optimizer, FusedStep(optimizer), 4)
    assert len(called) == 4
