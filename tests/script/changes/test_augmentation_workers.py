"""More workers for rows that draw at random, only where rows are made of their number and torch's seeds."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hearing import completed

SCRIPT = """
import json, os, random, sys
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
import numpy as np, torch
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info
from sweeper.script.changes import apply

kind, workers, told = sys.argv[1], int(sys.argv[2]), []

class Rows(Dataset):
    def __init__(self):
        self.own = np.random.default_rng(0)
    def __len__(self):
        return 64
    def __getitem__(self, i):
        draws = {"torch": lambda: torch.rand(()), "numpy": np.random.random, "python": random.random,
                 "own": self.own.random, "entropy": np.random.default_rng().random,
                 "nothing": lambda: 0.0}
        draw = draws.get(kind, random.random)()
        return i, float(draw), get_worker_info().id if get_worker_info() else -1

class Own(Sampler):
    def __iter__(self):
        return iter(range(64))
    def __len__(self):
        return 64

apply(torch, "augmentation_workers=cores", told.append)
torch.manual_seed(0)
given = {"sampler": Own()} if kind == "sampler" else {"shuffle": True}
if kind == "init":
    given["worker_init_fn"] = lambda number: None
loader = DataLoader(Rows(), batch_size=8, num_workers=workers, **given)
passes = []
for epoch in range(2):
    batches = list(loader)
    columns = [sum((batch[n].tolist() for batch in batches), []) for n in range(3)]
    passes.append(columns)
print(json.dumps({"told": told, "passes": passes, "own": loader.num_workers}))
"""


def trained(tmp_path: Path, kind: str, workers: int = 0) -> dict[str, Any]:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-W", "ignore", "train.py", kind, str(workers)]
    return completed(command, {"PYTHONPATH": os.getcwd()}, tmp_path).truth


@pytest.mark.parametrize("kind", ["torch", "numpy", "python"])
def test_all_rows_come_once_in_a_pass_and_no_two_draws_are_equal(tmp_path: Path, kind: str) -> None:
    cores = min(2, len(os.sched_getaffinity(0)))
    found = trained(tmp_path, kind)
    assert [each["change"]["applied"] for each in found["told"]] == [True]
    assert found["own"] == 0
    draws = []
    for rows, drawn, readers in found["passes"]:
        assert sorted(rows) == list(range(64))
        assert rows != sorted(rows)
        assert {*readers} == {*range(cores)}
        draws += drawn
    # In two passes, by all workers.
    assert len({*draws}) == len(draws)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("own", "has its own random generator"),
        ("entropy", "its data set has another source of them"),
        ("nothing", "its rows draw no random numbers"),
        ("sampler", "its sampler is the script's own"),
        ("init", "would call a `worker_init_fn` that it does not call now"),
    ],
)
def test_what_other_workers_could_make_differ_stays_as_it_is(tmp_path: Path, kind: str, why: str) -> None:
    found = trained(tmp_path, kind)
    assert [each["change"]["applied"] for each in found["told"]] == [False]
    assert why in found["told"][0]["change"]["why"]
    assert all({*readers} == {-1} for _, _, readers in found["passes"])


def test_a_loader_with_as_many_workers_is_left_alone(tmp_path: Path) -> None:
    found = trained(tmp_path, "torch", 2)
    assert found["told"] == []
