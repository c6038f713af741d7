"""Production runs to test with: a small pipeline, an export of it, and a run's folder nobody trained in."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweeper.core.codec import encode
from sweeper.core.config import TrialConfig
from sweeper.core.training import CHECKPOINTS, HISTORY
from sweeper.production.folder import RunFolder
from sweeper.system.files import write_json

SLOWER = "slower"
"""A file beside the pipeline; while it is there, each training step takes ten times as long."""

PIPELINE = '''\
"""A line through points; each training step takes `model.step_seconds`."""

import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from sweeper.trainer.pipeline import Pipeline, Prepared, Samples

ROWS = 960
SLOWER = Path(__file__).with_name("slower")


def prepare(data):
    x = np.random.default_rng(0).standard_normal((ROWS + 100, 4)).astype(np.float32)
    return Prepared(arrays={"x": x, "y": x.sum(1) + 0.1 * x[:, 0] ** 2}, synthetic=True)


def build(config, prepared):
    tensors = {name: torch.from_numpy(array) for name, array in prepared.arrays.items()}

    def loss(model, batch):
        if torch.is_grad_enabled():
            seconds = float(config.model.get("step_seconds") or 0.0)
            time.sleep(10 * seconds if SLOWER.exists() else seconds)
        value = nn.functional.mse_loss(model(batch["x"]).squeeze(-1), batch["y"])
        return value * float(config.model.get("factor", 1.0))

    def part(rows):
        own = {name: tensor[rows] for name, tensor in tensors.items()}
        return Samples(tensors=own, length=len(own["y"]))

    return Pipeline(
        model=nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.ReLU(), nn.Linear(8, 1)),
        train=part(slice(ROWS)),
        val=part(slice(ROWS, None)),
        loss=loss,
    )
'''

CONFIG = {"batch_size": 48, "loader.kind": "resident", "optimizer.lr": 0.01, "device.cpu_threads": 1}

EXPORT: Mapping[str, Any] = {
    "schema": 2,
    "pipeline": "line_pipeline",
    "data": {},
    "config": encode(TrialConfig().replace(CONFIG)),
    "measurement": {"throughput": 10_000.0},
    "conditions": {"device": "EPYC, 4 cores", "torch": "2.13.0", "train_samples": 960},
    "production": {"samples": 2000.0},
    "provenance": {"sweep": "lines", "trial": 7},
}


def export_in(folder: Path, **changes: Any) -> Path:
    """Writes the pipeline and its export into `folder`; a change of None leaves the key out.

    Args:
        config: Its fields by dotted name; all other changes replace a key of the export.
    """
    config = changes.pop("config", {})
    value = {**copy.deepcopy(dict(EXPORT)), **changes}
    value["config"] = encode(TrialConfig().replace({**CONFIG, **config}))
    (folder / "line_pipeline.py").write_text(PIPELINE)
    path = folder / "best.yaml"
    path.write_text(json.dumps({name: each for name, each in value.items() if each is not None}))
    return path


def values_of(**changes: Any) -> dict[str, Any]:
    """What the trainer reports of a run that kept its promise."""
    return {
        "ended": "epochs",
        "epochs": 3.0,
        "train_samples": 960,
        "device": {"kind": "cpu", "name": "EPYC, 4 cores", "uuid": ""},
        "versions": {"torch": "2.13.0"},
        "gpu_mem_peak_gib": None,
        "samples": 2880,
        "seconds": 12.0,
        "timed_samples": 100_000,
        "timed_seconds": 10.0,
        "disturbed": {},
        "val_loss": 0.25,
        "best_loss": 0.125,
        "metrics": {"accuracy": 0.9},
        "best_epoch": 2,
        **changes,
    }


def block(steps: int, seconds: float, **facts: Any) -> dict[str, Any]:
    """A line of the history, as a block of steps leaves it."""
    return {
        "at": 1000.0 + seconds,
        "steps": steps,
        "samples": 48 * steps,
        "epochs": steps / 20,
        "seconds": seconds,
        "throughput": 9500.0 + steps % 7,
        "loss": 1.0 / (1 + steps),
        "lr": 0.01,
        "steady": True,
        **facts,
    }


def validation(steps: int, seconds: float, loss: float | None) -> dict[str, Any]:
    """A line of the history, as a validation leaves it."""
    return {
        "at": 1000.0 + seconds,
        "steps": steps,
        "samples": 48 * steps,
        "seconds": seconds,
        "epoch": steps // 20,
        "val_loss": loss,
        "metrics": {"accuracy": 0.9},
    }


def write(folder: RunFolder, *lines: Mapping[str, Any], name: str = HISTORY) -> None:
    """Adds lines to a file of the run."""
    with open(folder.path / name, "a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))


def commit(folder: RunFolder) -> None:
    """Has a checkpoint be there that knows of all that is in the history."""
    length = (folder.path / HISTORY).stat().st_size
    home = folder.path / CHECKPOINTS
    number = len(list(home.glob("*"))) + 1
    (home / f"{number:09d}").mkdir(parents=True)
    write_json(home / f"{number:09d}" / "position.json", {"history_bytes": length})
