"""Exported scripts, run whole on the strict stand-in for CUDA from an uninitialised state."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from exports import A10, export_of

from sweeper.exports import render_export
from sweeper.exports.python_lines import YOURS

pytestmark = pytest.mark.slow

TESTS = str(Path(__file__).parents[1])
OWN = """\
from torch.utils.data import TensorDataset
x = torch.randn(230, 8)
dataset = TensorDataset(x, x.sum(dim=1, keepdim=True))
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
seen = []


def loss_of(model, batch):
    loss = torch.nn.functional.mse_loss(model(batch[0]).float(), batch[1])
    seen.append(loss)
    return loss
"""
RUN = f"""
import sys, warnings
sys.path.insert(0, {TESTS!r})
from strict_cuda import StrictCuda
warnings.simplefilter("error")
with StrictCuda() as cuda:
    scope = {{"__name__": "__main__"}}
    exec(compile(sys.stdin.read(), "exported.py", "exec"), scope)
    loss = scope["loss"]
    assert type(loss).__name__ == "OnCuda"
    print(scope["torch"].cuda.is_initialized(), float(loss), float(scope["seen"][0].detach()))
"""
BASE: dict[str, Any] = {"batch_size": 32, "optimizer.lr": 0.01, "device.cpu_threads": 1}


CASES: dict[str, dict[str, Any]] = {
    "graph": {"compile.mode": "graph"},
    "graph, fp16": {"compile.mode": "graph", "precision.amp": "fp16", "accumulate_steps": 2},
    "graph, stream": {"compile.mode": "graph", "loader.kind": "stream", "optimizer.name": "sgd"},
    "graph, workers": {
        "compile.mode": "graph",
        "loader.kind": "workers",
        "loader.num_workers": 1,
        "loader.pin_memory": True,
        "precision.tf32": True,
    },
    "rows": {
        "loader.kind": "rows",
        "loader.pin_memory": True,
        "precision.amp": "bf16",
        "precision.tf32": False,
    },
}
FIRST = "graph"


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(settings, id=name, marks=[] if name == FIRST else [pytest.mark.slow])
        for name, settings in CASES.items()
    ],
)
def test_an_exported_script_trains(settings: dict[str, Any]):
    lines = render_export(export_of({**BASE, **settings}, device=A10), "python")
    assert YOURS in lines
    text = lines.replace(YOURS, OWN).replace("EPOCHS = 1", "EPOCHS = 8")
    run = subprocess.run([sys.executable, "-c", RUN], input=text, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    initialised, last, first = run.stdout.split()
    assert initialised == "True"
    assert float(last) < 0.5 * float(first)
