"""Workers with one thread each: where their rows stay the same, and where they had more."""

from __future__ import annotations

import json
import sys

import pytest
from hearing import completed

SCRIPT = """
import hashlib, json, os, sys
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from sweeper.script.changes import apply
from sweeper.script.changes.rows import threads

class Rows(Dataset):
    table = np.random.default_rng(0).random((60, 8, 8), dtype=np.float32)

    def __len__(self):
        return 60

    def __getitem__(self, index):
        count = max([number() for number, _ in threads._libraries()], default=0)
        noise = np.random.random(self.table[index].shape).astype(np.float32)
        row = (self.table[index] + noise) @ self.table[index].T
        return torch.from_numpy(row), torch.tensor(float(count) if REPORTS else 0.0), ROW

def digest(loader):
    torch.manual_seed(0)
    np.random.seed(0)
    found, counts = hashlib.sha256(), set()
    for _ in range(2):
        for rows, count, _ in loader:
            found.update(rows.numpy().tobytes())
            counts.update(count.tolist())
    return found.hexdigest(), sorted(counts)

REPORTS, ROW = {reports}, {row}
messages = []
loader = DataLoader(Rows(), batch_size=10, shuffle=True, num_workers={workers})
before = digest(loader)
apply(torch, "worker_threads=one", messages.append)
after = digest(loader)
print(json.dumps({{
    "before": before, "after": after, "messages": [message["change"] for message in messages],
    "init": loader.worker_init_fn is None,
}}))
"""


def trained(
    *, workers: int = 2, reports: bool = False, row: str = "1.0", env: str = "4"
) -> dict[str, object]:
    text = SCRIPT.format(workers=workers, reports=reports, row=row)
    variables = {"OPENBLAS_NUM_THREADS": env, "OMP_NUM_THREADS": env}
    command = ["env", *[f"{name}={value}" for name, value in variables.items()], sys.executable, "-c", text]
    truth: dict[str, object] = completed(command).truth
    return truth


def test_rows_that_stay_the_same_are_read_with_one_thread() -> None:
    seen = trained()
    assert seen["before"] == seen["after"]
    assert seen["messages"] == [{"name": "worker_threads", "applied": True, "why": ""}]
    assert seen["init"]


def test_rows_that_depend_on_the_threads_are_read_as_before() -> None:
    seen = trained(reports=True)
    assert seen["before"] == seen["after"]
    assert "differs with one thread" in json.dumps(seen["messages"])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"env": "1"}, "have one thread already"),
        ({"row": "'text'"}, "parts that are not tensors"),
        ({"workers": 0}, ""),
    ],
)
def test_others_are_left_alone(options: dict[str, object], why: str) -> None:
    seen = trained(**options)  # type: ignore[arg-type]
    assert seen["before"] == seen["after"]
    assert not [message for message in seen["messages"] if message["applied"]]  # type: ignore[union-attr]
    assert why in json.dumps(seen["messages"])
