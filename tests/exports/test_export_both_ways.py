"""Flags given to a plain script, and lines pasted into one, set what the exported configuration says."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from exports import A10, export_of

from sweeper.core.config import TrialConfig
from sweeper.exports import render_export

HERE = Path(__file__).parent
STEPS = 3

CASES: dict[str, dict[str, Any]] = {
    "plain": {"loader.kind": "rows", "device.malloc": "default", "optimizer.fused": False},
    "rows": {
        "loader.kind": "rows",
        "loader.num_workers": 1,
        "loader.prefetch_factor": 4,
        "loader.drop_last": False,
        "batch_size": 6,
        "precision.amp": "bf16",
        "optimizer.weight_decay": 0.05,
        "device.cpu_threads": 1,
    },
    "workers": {
        "loader.kind": "workers",
        "loader.num_workers": 2,
        "loader.persistent_workers": False,
        "batch_size": 5,
        "accumulate_steps": 2,
        "optimizer.name": "sgd",
        "optimizer.lr": 0.01,
        "optimizer.lr_rule": "linear",
        "optimizer.lr_batch_size": 5,
        "compile.mode": "default",
    },
    "no workers": {"loader.kind": "workers", "loader.num_workers": 0, "loader.drop_last": False},
    "resident": {
        "batch_size": 16,
        "precision.amp": "fp16",
        "compile.mode": "reduce-overhead",
        "optimizer.lr_rule": "sqrt",
        "optimizer.lr_batch_size": 4,
        "optimizer.clip_norm": 0.5,
        "optimizer.warmup_steps": 6,
        "memory_format": "channels_last",
        "seed": 7,
    },
    "stream": {"loader.kind": "stream", "loader.drop_last": False, "optimizer.name": "adam", "batch_size": 9},
    "gpu": {
        "loader.kind": "rows",
        "loader.pin_memory": True,
        "loader.num_workers": 1,
        "precision.tf32": True,
        "compile.cudnn_benchmark": True,
        "optimizer.name": "sgd",
        "precision.amp": "fp16",
        "compile.mode": "max-autotune",
    },
}
ON_GPU = {"gpu"}


@pytest.fixture(scope="module")
def observed() -> dict[str, Any]:
    asked = []
    for name, settings in CASES.items():
        value = export_of(settings, device=A10 if name in ON_GPU else None)
        config = TrialConfig().replace(settings)
        asked.append(
            {
                "flags": shlex.split(render_export(value, "args")),
                "lines": render_export(value, "python"),
                "batch": config.batch_size,
                "accumulate": config.accumulate_steps,
            }
        )
    run = subprocess.run(
        [sys.executable, str(HERE / "observed.py")],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    return dict(zip(CASES, json.loads(run.stdout), strict=True))


def expected(settings: dict[str, Any]) -> dict[str, Any]:
    config = TrialConfig().replace(settings)
    loader, has_workers = config.loader, config.loader.num_workers > 0
    ragged = [] if loader.drop_last else [1]
    micro = STEPS * config.accumulate_steps
    updates, warmup = STEPS + len(ragged), config.optimizer.warmup_steps
    rate = config.optimizer.lr_at(config.global_batch)
    return {
        "loader": {
            "whole": loader.kind == "workers",
            "batch_size": config.batch_size,
            "drop_last": loader.drop_last,
            "shuffled": True,
            "num_workers": loader.num_workers,
            "pin_memory": loader.pin_memory,
            "prefetch_factor": loader.prefetch_factor if has_workers else None,
            "persistent_workers": loader.persistent_workers and has_workers,
        }
        if loader.kind in ("rows", "workers")
        else None,
        "sizes": [config.batch_size] * micro + ragged,
        "autocast": {"fp32": "none", "bf16": "torch.bfloat16", "fp16": "torch.float16"}[config.precision.amp],
        "scaled": config.precision.amp == "fp16",
        "compile": config.compile.mode,
        "optimizer": {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD"}[config.optimizer.name],
        "fused": config.optimizer.fused,
        "lr": rate * (updates / warmup if warmup else 1.0),
        "weight_decay": config.optimizer.weight_decay,
        "clip": config.optimizer.clip_norm,
        "updates": updates,
        "tf32": "high" if config.precision.tf32 is True else "highest",
        "cudnn_benchmark": config.compile.cudnn_benchmark,
        "threads": config.device.cpu_threads or len(os.sched_getaffinity(0)),
        "channels_last": config.memory_format == "channels_last",
        "seed": config.seed,
    }


@pytest.mark.slow
@pytest.mark.parametrize("way", ["flags", "lines"])
@pytest.mark.parametrize("name", CASES)
def test_what_was_exported_is_what_is_set(observed, name, way):
    found, asked = observed[name][way], expected(CASES[name])
    # The schedule has gone one step on after the last update.
    if way == "lines" and CASES[name].get("optimizer.warmup_steps"):
        asked["lr"] *= (STEPS + 1) / STEPS
    assert found.pop("lr") == pytest.approx(asked.pop("lr"), rel=1e-5)
    assert found == asked
