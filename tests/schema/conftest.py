"""The specification which the tests start from."""

from pathlib import Path

import pytest

WHOLE = """\
name: stocks-a10
pipeline: pipelines.stocks              # module with prepare() and build()
data: {source: synthetic}
space:
  batch_size:             {type: int, low: 64, high: 4096, log: true}
  loader.kind:            {type: categorical, choices: [workers, resident]}
  loader.num_workers:     {type: int, low: 0, high: 16, when: {loader.kind: workers}}
  loader.prefetch_factor: {type: categorical, choices: [2, 4, 8], when: {loader.num_workers: {min: 1}}}
  precision.amp:          {type: categorical, choices: [fp32, bf16, fp16]}
  precision.tf32:         {type: categorical, choices: [true, false]}
  compile.mode:           {type: categorical, choices: [eager, default, reduce-overhead, max-autotune]}
  model.hidden_size:      {type: categorical, choices: [64, 128, 256]}
fix: {optimizer.lr_rule: sqrt}
baseline: {loader.kind: rows, loader.num_workers: 4, batch_size: 64, model.hidden_size: 64}
also_try: [{loader.kind: rows, loader.num_workers: 40, batch_size: 256, model.hidden_size: 64}]
objectives: [{maximize: throughput}]
constraints:
  val_loss: {max_ratio_to_baseline: 1.02}
  gpu_mem_peak_fraction: {max: 0.9}
production: {samples: 2.0e9}
measure: {window_seconds: 3, repeats: 3, quality_samples: auto}
search:  {sampler: auto, trials: 40, minutes: 20, seed: 0}
confirm: {top: 3, rounds: 8}
execution: {launcher: local, gpus: all, trial_timeout_minutes: 10}
"""


@pytest.fixture
def whole(tmp_path, monkeypatch):
    """`whole.yaml` in the current directory, so that messages begin with its bare name."""
    monkeypatch.chdir(tmp_path)
    path = Path("whole.yaml")
    path.write_text(WHOLE)
    return path
