"""Larger batches: of the loaders that shuffle, with the learning rate that goes with them."""

from __future__ import annotations

import sys

import pytest
from hearing import run

from sweeper.script.changes import CHANGES_VARIABLE, parse_changes

SCRIPT = """
import json
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset, WeightedRandomSampler

data = TensorDataset(torch.zeros(1000, 2))
parameters = [torch.nn.Parameter(torch.zeros(2))]
class Own(torch.optim.SGD):
    pass
loaders = {
    "shuffled": DataLoader(data, batch_size=64, shuffle=True),
    "dropping": DataLoader(data, batch_size=64, shuffle=True, drop_last=True),
    "weighted": DataLoader(data, batch_size=64, sampler=WeightedRandomSampler([1.0] * 1000, 1000)),
    "batches": DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 64, False)),
    "in order": DataLoader(data, batch_size=64),
    "other": DataLoader(data, batch_size=32, shuffle=True),
}
optimizers = {
    "SGD": torch.optim.SGD(parameters, lr=0.1),
    "Own": Own(parameters, lr=0.1),
    "Adam": torch.optim.Adam(parameters, lr=0.1),
    "AdamW": torch.optim.AdamW([{"params": parameters, "lr": 0.2}], lr=0.1),
}
schedule = torch.optim.lr_scheduler.StepLR(optimizers["SGD"], 1, 0.5)
optimizers["SGD"].step()
schedule.step()
print(json.dumps({
    "lengths": {key: [len(each), len(next(iter(each))[0]), each.batch_size] for key, each in loaders.items()},
    "rates": {name: each.param_groups[0]["lr"] for name, each in optimizers.items()},
}))
"""


def trained(value: str) -> object:
    found = run([sys.executable, "-c", SCRIPT], {CHANGES_VARIABLE: f"batch_size={value}"})
    assert found.status == 0, found.errors
    return found


def test_shuffled_loaders_give_larger_batches_and_rates_grow():
    truth = trained("256/64").truth
    assert truth["lengths"] == {
        "shuffled": [4, 256, 256],
        "dropping": [3, 256, 256],
        "weighted": [4, 256, 256],
        "batches": [4, 256, None],
        "in order": [16, 64, 64],
        "other": [32, 32, 32],
    }
    assert truth["rates"] == pytest.approx({"SGD": 0.2, "Own": 0.4, "Adam": 0.2, "AdamW": 0.4})


def test_the_own_size_changes_nothing():
    truth = trained("64/64").truth
    assert truth["lengths"]["shuffled"] == [16, 64, 64]
    assert truth["rates"] == pytest.approx({"SGD": 0.05, "Own": 0.1, "Adam": 0.1, "AdamW": 0.2})


@pytest.mark.parametrize("value", ["256", "0/64", "256/", "a/b", "-1/64"])
def test_a_value_has_the_new_size_and_the_own(value):
    with pytest.raises(ValueError, match="must name known changes"):
        parse_changes(f"batch_size={value}")
