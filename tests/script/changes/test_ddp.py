"""Gradients as parts of the buckets that ranks exchange."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sweeper.script.changes.ddp import Ddp


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A group of one rank."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    monkeypatch.setattr(DistributedDataParallel, "__init__", DistributedDataParallel.__init__)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_gradients_lie_in_buckets_unless_the_script_says_otherwise() -> None:
    reports: list[tuple[object, ...]] = []
    Ddp().apply(torch, "views", lambda *said: reports.append(said))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)))
    assert model.gradient_as_bucket_view
    for _ in range(2):
        model(torch.ones(2, 3)).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert len({each.untyped_storage().data_ptr() for each in gradients if each is not None}) == 1
    own = DistributedDataParallel(nn.Linear(3, 1), gradient_as_bucket_view=False)
    assert not own.gradient_as_bucket_view
    assert reports == [(True,), (False, "the script sets gradient_as_bucket_view itself")]
