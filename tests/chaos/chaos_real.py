"""The same kills with the real trainer: torch, loader workers, timed windows, a loss.

python tests/chaos/chaos_real.py supervisors|trials COUNT SEED
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import chaos_kills
import chaos_stage as stages
from chaos_kills import Tally

TRIALS = 3
MAX_SECONDS = 9.0
PAUSE_SECONDS = 1.0
PATIENCE_SECONDS = 240.0

SPACE = """\
name: {name}
pipeline: chaos_pipeline
space:
  batch_size: {{type: categorical, choices: [32, 64, 128]}}
  loader.kind: {{type: categorical, choices: [workers, resident]}}
  loader.num_workers: {{type: categorical, choices: [1, 2], when: {{loader.kind: workers}}}}
baseline: {{batch_size: 32, loader.kind: rows, loader.num_workers: 1}}
constraints: {{val_loss: {{max_ratio_to_baseline: 9.0}}}}
search: {{trials: {trials}, minutes: null, sampler: {sampler}}}
confirm: {{top: 1, rounds: 2, precision: 0.9}}
measure: {{window_seconds: 0.1, repeats: 2, warmup_cap_seconds: 0.5, quality_samples: 2000, trace: false}}
execution: {{gpus: 0}}
"""
PIPELINE = '''\
"""A regression whose steps take less than a millisecond."""

import numpy as np
import torch
from torch import nn

from sweeper.trainer.pipeline import Pipeline, Prepared, Samples


def prepare(data):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2200, 16)).astype(np.float32)
    return Prepared(arrays={"x": x, "y": x.sum(1)}, synthetic=True)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        return self.layers(x).squeeze(-1)


def build(config, prepared):
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in prepared.arrays.items()}
    train = Samples(tensors={name: each[:2000] for name, each in tensors.items()}, length=2000)
    val = Samples(tensors={name: each[2000:] for name, each in tensors.items()}, length=200)
    return Pipeline(model=Model(), train=train, val=val, loss=loss)


def loss(model, batch):
    return nn.functional.mse_loss(model(batch["x"]).float(), batch["y"])
'''


def run(kind: str, count: int, seed: int, folder: Path, database: Path) -> dict[str, Any]:
    """Runs kills on sweeps with the real trainer; returns the tally."""

    def stage_of(name: str) -> stages.Stage:
        return stages.stage(
            folder / name, trials=TRIALS, template=database, space=SPACE, pipeline=PIPELINE, real=True
        )

    tally = Tally()
    began = time.monotonic()
    if kind == "supervisors":
        chaos_kills.kill_supervisors(
            count, seed, stage_of, tally, trials=TRIALS, longest=MAX_SECONDS, patience=PATIENCE_SECONDS
        )
    else:
        chaos_kills.kill_trials(
            count, seed, stage_of, tally, trials=TRIALS, pause=PAUSE_SECONDS, patience=PATIENCE_SECONDS
        )
    return {"seconds": round(time.monotonic() - began, 1), **tally.as_dict()}


if __name__ == "__main__":
    with stages.theatre() as (place, template):
        print(json.dumps(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), place, template), indent=1))
