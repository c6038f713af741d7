"""`storage:` on the command line: what is told while the server is away, and `sweeper sync` afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest
from services.postgres import USER, Postgres

SPACE = """\
name: copied
pipeline: tiny_pipeline
space:
  batch_size: {{type: int, low: 32, high: 512, log: true}}
baseline: {{loader.kind: rows, batch_size: 32}}
measure: {{window_seconds: 0.05, repeats: 1, quality_samples: 0, warmup_cap_seconds: 0.1, trace: false}}
search: {{trials: 2, minutes: null}}
confirm: {{rounds: 0}}
storage: postgresql://{user}@127.0.0.1:{port}/copied
"""
PIPELINE = '''\
"""A line through numbers."""

import numpy as np
import torch

from sweeper.trainer.pipeline import Pipeline, Prepared, Samples


def prepare(data):
    x = np.random.default_rng(0).normal(size=(2048, 4)).astype("float32")
    return Prepared(arrays={"x": x, "y": x.sum(1, keepdims=True)}, meta={}, synthetic=True)


def build(config, prepared):
    tensors = {name: torch.from_numpy(prepared.arrays[name]) for name in ("x", "y")}
    samples = Samples(tensors=tensors, length=2048)
    return Pipeline(
        model=torch.nn.Linear(4, 1),
        train=samples,
        val=samples,
        loss=lambda model, batch: torch.nn.functional.mse_loss(model(batch["x"]), batch["y"]),
    )
'''


@pytest.mark.soak
def test_a_study_that_is_copied_later(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("PGPASSWORD", postgres.password)
    sweeper = request.getfixturevalue("sweeper")
    Path("tiny_pipeline.py").write_text(PIPELINE)
    Path("space.yaml").write_text(SPACE.format(user=USER, port=postgres.port))
    postgres.create("copied")
    postgres.kill()

    away = sweeper("run", "space.yaml", "--home", "elsewhere", timeout=300)
    assert away.returncode == 7, away.stdout + away.stderr
    told = f"The study at postgresql://127.0.0.1:{postgres.port}/copied: "
    (line,) = (line for line in away.stdout.splitlines() if line.startswith(told))
    assert "trials are not in it yet (connection to server at" in line
    assert line.endswith("`sweeper sync copied --home elsewhere` copies what is missing.")
    still = sweeper("sync", "copied", "--home", "elsewhere")
    assert still.returncode == 7
    assert line in still.stdout.splitlines()
    verified = sweeper("sync", "copied", "--home", "elsewhere", "--verify")
    assert verified.returncode == 5
    assert "the study cannot be read" in verified.stderr

    postgres.start()
    synced = sweeper("sync", "copied", "--home", "elsewhere")
    assert (synced.returncode, synced.stderr) == (0, "")
    assert len(synced.stdout.splitlines()) == 1
    assert sweeper("sync", "--home", "elsewhere", "--verify").returncode == 0
    postgres.query("copied", "UPDATE trial_values SET value = value + 1 WHERE trial_id = 1")
    damaged = sweeper("sync", "copied", "--home", "elsewhere", "--verify")
    assert damaged.returncode == 1
    assert "the study differs from the folder" in damaged.stdout

    extended = sweeper("run", "space.yaml", "--home", "elsewhere", "--extend", "1", timeout=300)
    assert extended.returncode == 0, extended.stdout + extended.stderr
    assert int(postgres.query("copied", "SELECT count(*) FROM trials")[0][0]) >= 3

    everything = [away, still, verified, synced, damaged, extended]
    for done in everything:
        assert "RDB" not in done.stdout + done.stderr
        assert postgres.password not in done.stdout + done.stderr
    kept = [path.read_bytes() for path in Path("elsewhere").rglob("*") if path.is_file()]
    assert kept
    assert not any(postgres.password.encode() in text for text in kept)
