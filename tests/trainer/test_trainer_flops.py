"""Operations per sample are those of the matrix products, forward and backward, recurrent layers included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sweeper.core.config import LoaderConfig, TrialConfig
from sweeper.trainer import trace
from sweeper.trainer.data.order import Order
from sweeper.trainer.data.workers import WorkerLoader
from sweeper.trainer.pipeline import Pipeline, Samples
from sweeper.trainer.step.stepper import Stepper

CPU = torch.device("cpu")
TIME, WIDTH, HIDDEN = 5, 3, 4


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(WIDTH, HIDDEN, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.inner(x)[0]
        return found


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(x))


def counted(
    model: nn.Module, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch, **changes: Any
) -> dict[str, Any]:
    monkeypatch.setitem(trace.SIDES, "cpu", 64)
    samples = Samples(tensors={"x": x}, length=len(x))

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        found: torch.Tensor = model(batch["x"]).square().mean()
        return found

    pipeline = Pipeline(model=model, train=samples, val=samples, loss=loss)
    stepper = Stepper(pipeline, TrialConfig().replace(changes), CPU)
    config = LoaderConfig(kind="workers", num_workers=0)
    loader = WorkerLoader(samples, Order(len(x), 8, 0, drop_last=True), config, CPU)
    loader.start()
    return trace.arithmetic(stepper, loader)


def test_those_of_linear_layers_are_two_a_weight_and_pass(monkeypatch: pytest.MonkeyPatch):
    model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 2))
    found = counted(model, torch.randn(64, 6), monkeypatch)
    # Forward, and backward for weights; for inputs, too, but for the first layer.
    assert found["flops_per_sample"] == 2 * (2 * (60 + 20) + 20)
    assert found["matmul_flops"] > 1e6


def test_those_of_recurrent_layers_count(monkeypatch: pytest.MonkeyPatch):
    before = torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled
    found = counted(Recurrent(), torch.randn(64, TIME, WIDTH), monkeypatch)
    forward = 2 * TIME * 4 * HIDDEN * (WIDTH + HIDDEN)
    assert 2 * forward < found["flops_per_sample"] <= 3 * forward
    assert (torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled) == before


def test_without_a_matrix_product_there_are_none(monkeypatch: pytest.MonkeyPatch):
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.by = nn.Parameter(torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.by * x

    assert counted(Scaled(), torch.randn(64, 2), monkeypatch)["flops_per_sample"] is None


def test_those_of_activations_that_are_computed_again_count(monkeypatch: pytest.MonkeyPatch):
    kept, again = (
        counted(nn.Sequential(Block(), Block()), torch.randn(64, 6), monkeypatch, **changes)
        for changes in ({}, {"activation_checkpointing": True})
    )
    assert again["flops_per_sample"] > kept["flops_per_sample"]
