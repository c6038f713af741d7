"""An error in the user's own code, wherever it is raised, is one line with its place."""

from __future__ import annotations

import gc
import os

import pytest

from sweeper.core.config import TrialConfig
from sweeper.core.job import PREPARE_RUNNER, Job, MeasurePlan
from sweeper.core.progress import Silent
from sweeper.worker.trial import _first_sentence, run

PIPELINE = """
import numpy as np, torch
from sweeper.trainer.pipeline import Pipeline, Prepared, Samples

def prepare(data):
    return Prepared(arrays={"x": np.zeros((64, 2), np.float32)})

def row(i):
    return {"x": {}["missing"]}

def build(config, prepared):
    x = torch.from_numpy(prepared.arrays["x"])
    samples = Samples(tensors={"x": x}, length=64, row=row)
    return Pipeline(model=torch.nn.Linear(2, 1), train=samples, val=samples,
                    loss=lambda model, batch: model(batch["x"]).mean())
"""


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_in_a_row_is_the_users_wherever_it_is_read(tmp_path, monkeypatch, num_workers):
    name = f"rows_with_a_bug_{num_workers}"
    (tmp_path / f"{name}.py").write_text(PIPELINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    common = {
        "pipeline": name,
        "import_paths": (os.getcwd(),),
        "prepared": str(tmp_path / "data"),
        "plan": MeasurePlan(window_seconds=0.1, repeats=1),
    }
    run(Job(uid="p", runner=PREPARE_RUNNER, **common), Silent())
    config = TrialConfig().replace(
        {"batch_size": 8, "loader.kind": "rows", "loader.num_workers": num_workers}
    )
    failure = run(Job(uid="t", config=config, **common), Silent())
    # The loader's worker ends with the loader, which the exception's frames held in a cycle.
    gc.collect()
    assert failure.kind == "user_error"
    assert failure.message == f"KeyError: 'missing' ({name}.py:9)"


def test_a_secret_is_struck_before_a_message_is_cut(monkeypatch):
    secret = "s3cret-canary-of-some-length"
    monkeypatch.setenv("MY_TOKEN", secret)
    for at in range(260, 310):
        message = _first_sentence("x" * at + f"?api={secret}&more")
        assert len(message) <= 300
        assert "s3c" not in message
