"""`sweeper check --deep` of a pipeline: what a person and a program are told, and the exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sweeper.cli.check import check
from sweeper.cli.check_pipeline import check_pipeline_deep
from sweeper.errors import UserError
from sweeper.scaffold import check_pipeline
from sweeper.schema import SweepSpec

PIPELINE = '''\
"""Ones, a linear model, and what the test wants to go wrong."""

import numpy as np
import torch
from sweeper.errors import UserError
from sweeper.trainer.pipeline import Pipeline, Prepared, Samples

def prepare(data):
    if data.get("bad"):
        raise UserError("`rows.csv` has no column `y`.")
    x = np.ones((300, 3), np.float32)
    return Prepared(arrays={"x": x}, synthetic=not data.get("real"), notes=["300 rows of ones."])

def build(config, prepared):
    fault = config.model.get("fault")
    if fault == "refused":
        raise UserError("`model.fault` must be none, but got 'refused'.")
    if fault == "build":
        raise RuntimeError("no such layer")
    def planted(x):
        if fault == "wait":
            x.sum().item()
        return x * torch.ones(3) if fault == "constant" else x
    samples = Samples(tensors={"x": torch.from_numpy(prepared.arrays["x"])}, length=300)
    def loss(model, batch):
        return model(planted(batch["x"])).square().mean() * (float("nan") if fault == "nan" else 1.0)
    model = torch.nn.Linear(3, config.model.get("width", 1))
    return Pipeline(model=model, train=samples, val=samples, loss=loss)
'''


@pytest.fixture
def deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Checks the pipeline above, its jobs in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("ones.py").write_text(PIPELINE)
    threads = torch.get_num_threads()

    def run(as_json: bool = False, data: Any = None, **baseline: Any) -> int:
        spec = SweepSpec.from_dict(
            {
                "name": "ones",
                "pipeline": "ones",
                "data": data or {},
                "space": {
                    "batch_size": {"type": "int", "low": 10, "high": 200},
                    "model.width": {"type": "categorical", "choices": [1, 5]},
                },
                "fix": {"device.malloc": "default", "device.cpu_threads": 1},
                "baseline": {"batch_size": 20, **baseline},
                "constraints": {"val_loss": {"max_ratio_to_baseline": 1.1}},
                "execution": {"launcher": "inline", "gpus": 0},
            }
        )
        return check_pipeline_deep(spec, tmp_path / "home", as_json=as_json)

    yield run
    torch.set_num_threads(threads)
    sys.modules.pop("ones", None)


def test_what_a_person_is_told(deep: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert deep() == 0
    said = capsys.readouterr().out
    assert "Synthetic data" in said
    assert "300 rows of ones." in said
    counts = "300 training samples, 300 validation samples"
    assert f"{counts}; 3.52 KiB of training data, 12 B per sample." in said
    assert "`loader.kind: resident` fits on the device." in said
    assert "a batch is x [20, 3] float32: 240 B" in said
    assert "4 parameters; loss " in said
    assert "Nothing in the baseline is expected to fail on a GPU or to make the host wait." in said
    baseline, largest = said.split("The largest configuration, bs200 width=5:")
    assert "batch 20: a step took" in baseline
    assert "20 parameters; loss " in largest
    assert ["batch 20:" in largest, "batch 80:" in largest, "batch 200: a step" in largest] == [True] * 3
    assert "estimate" not in said
    # The data is where a sweep finds it, and nothing else is left.
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["cache"]
    assert len(list((tmp_path / "home").glob("cache/*/prepared.json"))) == 1


def test_what_was_not_run_is_estimated(
    deep: Callable[..., int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        check_pipeline, "_reason_to_stop", lambda stepped, size, room: "so slow" if size == 200 else ""
    )
    assert deep() == 0
    largest = capsys.readouterr().out.partition("The largest")[2]
    assert "batch 200 was not run: so slow." in largest
    assert "GiB (estimated from the two smaller batches)." in largest


def test_real_data_is_called_so(deep: Callable[..., int], capsys: pytest.CaptureFixture[str]):
    assert deep(data={"real": True}) == 0
    said = capsys.readouterr().out
    assert "Real data" in said
    assert "Synthetic" not in said


def test_what_a_program_is_told(deep: Callable[..., int], capsys: pytest.CaptureFixture[str]):
    assert deep(as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["synthetic"], found["resident"], found["failure"]) == (True, True, None)
    assert found["baseline"]["batch"] == {"x": {"shape": [20, 3], "dtype": "float32"}}
    assert found["baseline"]["config"]["batch_size"] == 20
    assert [each["config"]["batch_size"] for each in found["largest"]["steps"]] == [20, 80, 200]
    assert found["largest"]["config"]["model.width"] == 5
    assert found["largest"]["expected_gib"] > 0


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ("nan", "The baseline did not run: non_finite: the training loss became nan within 2 steps"),
        ("build", "The baseline did not run: user_error: RuntimeError: no such layer (ones.py:"),
    ],
)
def test_what_breaks_is_one_line_and_exits_with_1(
    deep: Callable[..., int], capsys: pytest.CaptureFixture[str], fault: str, line: str
):
    assert deep(**{"model.fault": fault}) == 1
    assert line in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fault", "line", "effect", "said"),
    [
        ("wait", "x.sum().item()", "waits", "waits for the GPU in the training step: a number is read back"),
        (
            "constant",
            "return x * torch.ones(3)",
            "fails",
            "fails in the training step: `mul` gets a tensor on",
        ),
    ],
)
def test_what_a_gpu_would_not_take_is_noted_with_its_line(
    deep: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    fault: str,
    line: str,
    effect: str,
    said: str,
):
    place = f"ones.py:{PIPELINE[: PIPELINE.index(line)].count(chr(10)) + 1}"
    assert deep(**{"model.fault": fault}) == 0
    assert f"On a GPU (the baseline checked without one):\n  {place} {said}" in capsys.readouterr().out
    assert deep(as_json=True, **{"model.fault": fault}) == 0
    (found,) = json.loads(capsys.readouterr().out)["gpu"]["findings"]
    assert (found["effect"], found["part"], found["place"]) == (effect, "the training step", place)


def test_what_is_refused_is_a_user_error(deep: Callable[..., int]):
    with pytest.raises(UserError, match=r"`model\.fault` must be none"):
        deep(**{"model.fault": "refused"})
    with pytest.raises(UserError, match="no column `y`"):
        deep(data={"bad": True})


def test_json_needs_deep():
    with pytest.raises(UserError, match="needs `--deep`"):
        check(Path("x.yaml"), as_json=True)


def test_the_commands_import_no_torch():
    code = "import sys, sweeper.cli.check_pipeline, sweeper.cli.init; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


@pytest.mark.slow
def test_a_shipped_search_space_in_processes_of_its_own(tmp_path: Path):
    repository = Path(__file__).parents[2]
    command = [sys.executable, "-m", "sweeper", "check", "search_spaces/quick.yaml", "--deep", "--json"]
    sets = ["--home", str(tmp_path), "--set", "data.rows=5000"]
    done = subprocess.run([*command, *sets], cwd=repository, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["baseline"]["train_samples"] == 4500
    assert found["largest"]["steps"][-1]["config"]["batch_size"] == 2048
