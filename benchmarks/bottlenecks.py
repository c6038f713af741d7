"""Workloads with a known bottleneck, for `benchmarks/watch.py`: each with its verdict and the line at fault.

Each is an ordinary training program, and most are a pipeline as well; `# here` marks the line at fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sweeper.core.config import Scalar

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
_PIPELINE = """
import time
import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset
from sweeper.trainer.pipeline import Pipeline, Prepared, Samples

WIDTH = {width}
Rows = None
{before}

def prepare(_):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20000, WIDTH)).astype(np.float32)
    return Prepared(arrays={{"x": x, "y": x[:, :1].copy()}}, synthetic=True)

def build(config, prepared):
    global data, labels
    data, labels = (torch.from_numpy(np.asarray(prepared.arrays[name])) for name in "xy")
    rows = Rows() if Rows else None

    def loss(model, batch):
        x, y = batch["x"], batch["y"]
        loss = nn.functional.mse_loss(model(x), y){forward}
        return loss

    row = (lambda i: dict(zip("xy", rows[i]))) if rows else None
    samples = Samples(tensors={{"x": data, "y": labels}}, length=len(data), row=row)
    return Pipeline(model={model}, train=samples, val=samples, loss=loss)
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
    """A workload with a known bottleneck.

    Attributes:
        verdict: The right verdict.
        line: Text in the script's line at fault; empty if the whole step is.
        config: Settings with which a pipeline does the same; None if only a script can.
    """

    changes: Mapping[str, str]
    verdict: str
    line: str = "# here"
    config: Mapping[str, Scalar] | None = None

    @property
    def script(self) -> str:
        """The workload as a script."""
        return _USUAL.format(**{**_DEFAULTS, **self.changes})

    @property
    def pipeline(self) -> str:
        """The same as a pipeline."""
        return _PIPELINE.format(**{**_DEFAULTS, **self.changes})

    @property
    def line_number(self) -> int:
        """The number of the line at fault; 0 if any will do."""
        lines = self.script.splitlines()
        return next((i for i, text in enumerate(lines, start=1) if self.line and self.line in text), 0)


def _rows(*lines: str) -> str:
    return _ROWS.format(getitem="\n".join(f"        {line}" for line in lines))


_SGD: Mapping[str, Scalar] = {"optimizer.name": "sgd"}
_BY_ROW: Mapping[str, Scalar] = {"loader.kind": "rows", "loader.num_workers": 0, "batch_size": 256, **_SGD}
_IN_MEMORY: Mapping[str, Scalar] = {"loader.kind": "resident", "loader.num_workers": 0, **_SGD}

CASES: Mapping[str, Case] = {
    "rows": Case({}, "input-bound", "", _BY_ROW),
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
        config=_BY_ROW,
    ),
    "slow storage": Case(
        {
            "before": _rows("time.sleep(0.0001)  # here", "return data[index], labels[index]"),
            "dataset": "Rows()",
        },
        "input-bound",
        config=_BY_ROW,
    ),
    "one worker": Case(
        {
            "before": _rows("time.sleep(0.0001)", "return data[index], labels[index]"),
            "dataset": "Rows()",
            "workers": "1",
            "fetched": "  # here",
        },
        "input-bound",
        config={**_BY_ROW, "loader.num_workers": 1},
    ),
    "tiny batch": Case(
        {"dataset": "[(data[i], labels[i]) for i in range(2000)]", "batch": "1"},
        "launch-bound",
        "",
        {**_IN_MEMORY, "batch_size": 1},
    ),
    "many layers": Case(
        {
            "model": "nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(60)), nn.Linear(WIDTH, 1))",
            "dataset": "[(data[:8], labels[:8])] * 1000",
            "batch": "None",
        },
        "launch-bound",
        "",
        {**_IN_MEMORY, "batch_size": 8},
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
        {**_IN_MEMORY, "batch_size": 256},
    ),
    "memory": Case(
        {
            "model": "nn.Sequential(nn.Linear(WIDTH, 4096), nn.ReLU(), nn.Linear(4096, 1))",
            "dataset": "[(data[:4096], labels[:4096])] * 1000",
            "batch": "None",
        },
        "memory-bandwidth-bound",
        "",
        {**_IN_MEMORY, "batch_size": 4096, "device.malloc": "default"},
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
        config={**_IN_MEMORY, "batch_size": 4, "optimizer.name": "adam"},
    ),
    "wait": Case(
        {"dataset": _BATCHES, "batch": "None", "forward": "\n        time.sleep(0.004)  # here"},
        "sync-bound",
        config={**_IN_MEMORY, "batch_size": 256},
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
        {"dataset": _BATCHES, "batch": "None", "after": "sum(float(v) for v in x.flatten())  # here"},
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
    "evaluation": Case(
        {
            "dataset": _BATCHES,
            "batch": "None",
            "after": """if step % 10 == 0:
            model.eval()
            with torch.no_grad():
                nn.functional.mse_loss(model(data), labels)  # here
            model.train()""",
        },
        "host-bound",
    ),
}
