"""What the training process reads in place of persistent workers, when the check itself cannot be made."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from sweeper.interventions.own_rows import OwnRows


@pytest.fixture
def loader() -> DataLoader[object]:
    with torch.inference_mode():
        # It does not count its changes.
        rows = torch.arange(40.0)
    return DataLoader(TensorDataset(rows), batch_size=8, num_workers=1, persistent_workers=True)


def test_a_witness_that_died_is_said_and_the_training_goes_on(loader: DataLoader[object]):
    said: list[str] = []

    def report(is_applied: bool, why: str = "", /, *, was_applied: bool = False) -> None:
        said.append(why)

    own_rows = OwnRows(torch, loader, report)
    first = own_rows.fetch([0, 1])
    own_rows.begin(loader)
    own_rows.fetch([0, 1])
    own_rows.end(loader)
    assert (own_rows.are_changed, said) == (False, [])
    assert own_rows._witness is not None
    own_rows._witness._own.close()
    own_rows.end(loader)
    assert (own_rows.are_changed, said) == (True, ["the process that read its rows died"])
    assert torch.equal(own_rows.fetch([0, 1])[0], first[0])
