"""How many samples a batch has, whatever its structure."""

from __future__ import annotations

import types
from collections import UserDict, namedtuple

import pytest
import torch

from sweeper.script.inside.batches import reader_of

Pair = namedtuple("Pair", "image label")
ROWS = torch.zeros(8, 3)


class Graphs:
    num_graphs = 8
    x = torch.zeros(120, 4)


@pytest.mark.parametrize(
    ("batch", "expected", "samples"),
    [
        (ROWS, None, 8),
        ([ROWS, torch.zeros(8)], 8, 8),
        ({"ids": torch.zeros(8, 16), "labels": torch.zeros(8)}, 8, 8),
        (UserDict(ids=torch.zeros(8, 16)), None, 8),
        (Pair(ROWS, torch.zeros(8)), None, 8),
        # Time first: only the second dimension is the loader's batch.
        ([torch.zeros(20, 8, 3), torch.zeros(20, 8)], 8, 8),
        # Pictures of different sizes, with a dictionary each.
        (([torch.zeros(3, 5, 5)] * 8, [{"boxes": torch.zeros(2, 4)}] * 8), 8, 8),
        (tuple(zip(*[(torch.zeros(3, 5, 5), {"n": 1})] * 8, strict=True)), 8, 8),
        (Graphs(), 8, 8),
        (types.SimpleNamespace(meta={"k": 1}, x=ROWS), None, 8),
        (ROWS.numpy(), None, 8),
        # A last batch that is smaller than the loader's.
        ([torch.zeros(5, 3), torch.zeros(5)], 8, 5),
    ],
)
def test_samples(batch, expected, samples):
    assert reader_of(batch, expected).read(batch) == samples


@pytest.mark.parametrize("batch", [None, 3, "text", [], {}, torch.tensor(1.0)])
def test_what_is_no_batch_has_none(batch):
    assert reader_of(batch) is None


def test_later_batches_are_read_at_the_same_place():
    reader = reader_of([torch.zeros(20, 8, 3), torch.zeros(20, 8)], 8)
    assert reader.read([torch.zeros(20, 5, 3), torch.zeros(20, 5)]) == 5
