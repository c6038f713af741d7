"""Batches in page-locked memory, and the allocator's blocks: what is asked for, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader

from sweeper.interventions.environment import ALLOCATOR
from sweeper.interventions.gpu import Pinned
from sweeper.scaffold.known_options import of_environment


def test_a_pass_pins_and_the_loader_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    reports: list[tuple[object, ...]] = []

    def get_iterator(loader: DataLoader[int]) -> Iterator[int]:
        seen.append(loader.pin_memory)
        return iter([1, 2])

    monkeypatch.setattr(DataLoader, "_get_iterator", get_iterator)
    Pinned().apply(torch, "on", lambda *said: reports.append(said))
    loader = DataLoader([1, 2])  # type: ignore[arg-type]
    assert list(loader) == [1, 2]
    assert seen == [True]
    assert not loader.pin_memory
    assert reports == [(True,)]


def test_the_allocator_is_changed_on_a_gpu_where_the_user_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ALLOCATOR:
        monkeypatch.delenv(name, raising=False)
    assert "allocator" not in of_environment({"device": "cpu"})
    dimension, variables = of_environment({"device": "cuda"})["allocator"]
    assert dimension.choices == ("default", "expandable")
    assert variables == {ALLOCATOR[0]: "{allocator: expandable -> expandable_segments:True}"}
    monkeypatch.setenv(ALLOCATOR[1], "max_split_size_mb:64")
    assert "allocator" not in of_environment({"device": "cuda"})
