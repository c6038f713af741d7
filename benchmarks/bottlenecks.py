"""Scripts whose bottleneck is known, for `benchmarks/watch.py verdicts`: the verdict, and the line to name.

Each is an ordinary training program; the line to be named is marked by `# here`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_USUAL = """
import random, time
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

WIDTH, BATCH, WORKERS = {width}, {batch}, {workers}
data, labels = torch.randn(20000, WIDTH), torch.randn(20000, 1)
{before}
model = {model}
optimizer = {optimizer}
loader = DataLoader({dataset}, batch_size=BATCH, shuffle=True, num_workers=WORKERS)
for epoch in range(10000):
    model.train()
    for step, (x, y) in enumerate(loader):{fetched}
        loss = nn.functional.mse_loss(model(x), y){forward}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step(){stepped}
        {after}
"""
_ROWS = """
class Rows(Dataset):
    def __len__(self):
        return len(data)
    def __getitem__(self, index):
{getitem}
"""
_MLP = "nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 1))"
_DEFAULTS = {
    "width": "32",
    "batch": "256",
    "workers": "0",
    "before": "",
    "model": _MLP,
    "optimizer": "torch.optim.SGD(model.parameters(), 1e-3)",
    "dataset": "TensorDataset(data, labels)",
    "fetched": "",
    "forward": "",
    "stepped": "",
    "after": "pass",
}
_BATCHES = "[(data[:256], labels[:256])] * 1000"


@dataclass(frozen=True)
class Case:
    """A script with a known bottleneck.

    Attributes:
        verdict: What it has to be called.
        line: Text in the line that has to be named; empty where the whole step is.
    """

    changes: Mapping[str, str]
    verdict: str
    line: str = "# here"

    @property
    def script(self) -> str:
        """Its text."""
        return _USUAL.format(**{**_DEFAULTS, **self.changes})

    @property
    def line_number(self) -> int:
        """The line to be named; 0 if any will do."""
        lines = self.script.splitlines()
        return next((i for i, text in enumerate(lines, start=1) if self.line and self.line in text), 0)


def _rows(*lines: str) -> str:
    return _ROWS.format(getitem="\n".join(f"        {line}" for line in lines))


CASES: Mapping[str, Case] = {
    "rows": Case({}, "input-bound", ""),
    "transform": Case(
        {
            "before": _rows(
                "row = data[index].numpy()",
                "row = np.sort(np.tile(row, 60))[:WIDTH]  # here",
                "return torch.from_numpy(row.copy()), labels[index]",
            ),
            "dataset": "Rows()",
        },
        "input-bound",
    ),
    "slow storage": Case(
        {
            "before": _rows("time.sleep(0.0001)  # here", "return data[index], labels[index]"),
            "dataset": "Rows()",
        },
        "input-bound",
    ),
    "one worker": Case(
        {
            "before": _rows("time.sleep(0.0001)", "return data[index], labels[index]"),
            "dataset": "Rows()",
            "workers": "1",
            "fetched": "  # here",
        },
        "input-bound",
    ),
    "tiny batch": Case(
        {"dataset": "[(data[i], labels[i]) for i in range(2000)]", "batch": "1"}, "launch-bound", ""
    ),
    "arithmetic": Case(
        {
            "width": "512",
            "model": "nn.Sequential(nn.Linear(WIDTH, 4096), nn.ReLU(), nn.Linear(4096, 1))",
            "dataset": _BATCHES,
            "batch": "None",
        },
        "compute-bound",
        "",
    ),
    "optimizer": Case(
        {
            "model": "nn.Sequential(nn.Linear(WIDTH, 100000), nn.ReLU(), nn.Linear(100000, 1))",
            "optimizer": "torch.optim.Adam(model.parameters(), foreach=False)",
            "dataset": "[(data[:4], labels[:4])] * 1000",
            "batch": "None",
            "stepped": "  # here",
        },
        "launch-bound",
    ),
    "logging": Case(
        {
            "dataset": _BATCHES,
            "batch": "None",
            "after": "open('log.txt', 'a').write(repr(x.tolist()))  # here",
        },
        "host-bound",
    ),
    "metrics": Case(
        {
            "dataset": _BATCHES,
            "batch": "None",
            "after": "sum(float(v) for v in x[:, 0])  # here",
        },
        "host-bound",
    ),
    "preparation": Case(
        {
            "dataset": _BATCHES,
            "batch": "None",
            "fetched": "\n        sorted_rows = np.sort(np.tile(x.numpy(), (1, 20)))  # here"
            "\n        x = torch.from_numpy(sorted_rows[:, :WIDTH].copy())",
        },
        "input-bound",
    ),
}
