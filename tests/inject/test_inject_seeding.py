"""Passes that are cut short for a proof: about as many rows each, and later ones as they would have been."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from sweeper.inject.points import Points
from sweeper.inject.seeding import MIN_BATCHES, cut_passes

NUM_BATCHES = 8


@contextmanager
def cut(num_batches: int = NUM_BATCHES) -> Iterator[None]:
    points = Points(lambda _: None)
    cut_passes(torch, points, num_batches)
    try:
        yield
    finally:
        points.fail(RuntimeError("the test is over"))


def loader(size: int, num_rows: int = 4000) -> DataLoader[Any]:
    return DataLoader(range(num_rows), batch_size=size)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size", "num_batches"), [(10, NUM_BATCHES), (5, NUM_BATCHES), (20, 4), (30, 2), (1000, MIN_BATCHES)]
)
def test_a_loader_with_larger_batches_is_cut_to_about_as_many_rows(size: int, num_batches: int) -> None:
    with cut():
        assert len(list(loader(10))) == NUM_BATCHES
        assert len(list(loader(size))) == num_batches


def test_the_last_batch_is_kept_and_a_short_pass_is_whole() -> None:
    with cut():
        assert [len(each) for each in loader(10, num_rows=104)] == [10] * (NUM_BATCHES - 1) + [4]
        assert len(list(loader(10, num_rows=30))) == 3


class Drawing:
    """A batch sampler that draws for each batch anew, as curricula do."""

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(20):
            yield torch.randint(0, 100, (4,)).tolist()


def test_a_later_pass_has_the_order_that_it_would_have_had() -> None:
    def second_pass(num_batches: int) -> list[Any]:
        torch.manual_seed(0)
        with cut(num_batches):
            among = DataLoader(range(100), batch_sampler=Drawing())  # type: ignore[arg-type]
            list(among)
            return [each.tolist() for each in among]

    assert second_pass(5)[:4] == second_pass(1000)[:4]
