"""An error in the user's own code, wherever it is raised, is one line with its place."""

from __future__ import annotations

import gc
import os
import uuid
from pathlib import Path

import pytest

import sweeper
from sweeper.core.config import TrialConfig
from sweeper.core.job import PREPARE_RUNNER, Job, MeasurePlan
from sweeper.core.progress import SilentProgress
from sweeper.worker.failures import of_text
from sweeper.worker.trial import _as_raised, _first_sentence, run

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


@pytest.mark.slow
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
    run(Job(uid="p", runner=PREPARE_RUNNER, **common), SilentProgress())
    config = TrialConfig().replace(
        {"batch_size": 8, "loader.kind": "rows", "loader.num_workers": num_workers}
    )
    failure = run(Job(uid="t", config=config, **common), SilentProgress())
    # The loader's worker ends with the loader, which the exception's frames held in a cycle.
    gc.collect()
    assert failure.kind == "user_error"
    assert failure.message == f"KeyError: 'missing' ({name}.py:9)"


HELPER = """
from sweeper.errors import UserError
from sweeper.trainer.pipeline import Samples

def read(price):
    if price == "":
        raise UserError("`data.price` must be a number, but got nothing. Give one.")
    if price == "negative":
        return Samples(tensors={}, length=-1)
    return float(price)
"""
PREPARE = """
import concurrent.futures
import json

def prepare(data):
    import {helper} as helper
    {line}

def build(config, prepared):
    pass
"""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("helper.read('twelve')", "ValueError: could not convert string to float: 'twelve' ({helper}.py:10)"),
        # What raises is installed, and the line that called it is the user's.
        ("json.loads('[')", "JSONDecodeError: Expecting value: line 1 column 2 (char 1) ({pipeline}.py:7)"),
        ("helper.read('')", "`data.price` must be a number, but got nothing. Give one ({helper}.py:7)"),
        ("import {broken}", "SyntaxError: invalid syntax ({broken}.py, line 2) ({broken}.py:2)"),
        ("raise SystemExit('no data')", "SystemExit: no data ({pipeline}.py:7)"),
        (
            "list(concurrent.futures.ProcessPoolExecutor(1).map(helper.read, ['many']))",
            "ValueError: could not convert string to float: 'many' ({helper}.py:10)",
        ),
    ],
    ids=["helper", "library", "user error", "syntax", "exit", "pool"],
)
@pytest.mark.parametrize("beside", [True, False], ids=["beside", "elsewhere"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_an_error_in_prepare_has_the_line_that_raised_it(
    tmp_path, monkeypatch, capsys, line, message, beside
):
    number = uuid.uuid4().hex
    names = {"pipeline": f"pipeline_{number}", "helper": f"helper_{number}", "broken": f"broken_{number}"}
    code = tmp_path / "code"
    code.mkdir()
    (code / f"{names['pipeline']}.py").write_text(
        PREPARE.replace("{line}", line)
        .replace("{helper}", names["helper"])
        .replace("{broken}", names["broken"])
    )
    (code / f"{names['helper']}.py").write_text(HELPER)
    (code / f"{names['broken']}.py").write_text("x = 1\ny = = 2\n")
    monkeypatch.syspath_prepend(code)
    own = code if beside else tmp_path / "another"
    job = Job(
        uid="p",
        runner=PREPARE_RUNNER,
        pipeline=names["pipeline"],
        import_paths=(str(own),),
        prepared=str(tmp_path / "data"),
    )
    failure = run(job, SilentProgress())
    text, place = message.format(**names).rsplit(" (", 1)
    assert failure.kind == "user_error"
    # Of what is found elsewhere the folder is told, too.
    assert failure.message == f"{text} ({place if beside else f'{code}{os.sep}{place}'}"
    assert f", line {place.rpartition(':')[2].rstrip(')')}" in capsys.readouterr().err


OF_CUDA = """\
CUDA error: out of memory
CUDA kernel errors might be asynchronously reported at some other API call.
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."""


def passed_on(where: str) -> None:
    """Raises an error of CUDA's as torch passes it on from there."""
    from torch._utils import ExceptionWrapper

    try:
        raise RuntimeError(OF_CUDA)
    except RuntimeError:
        ExceptionWrapper(where=f"in {where}").reraise()


@pytest.mark.parametrize("where", ["DataLoader worker process 0", "pin memory thread for device 0"])
def test_an_error_in_a_loaders_worker_or_thread_is_told_as_it_was_raised_there(where):
    with pytest.raises(RuntimeError) as caught:
        passed_on(where)
    raised = _as_raised(caught.value)
    assert raised == f"RuntimeError: {OF_CUDA}"
    assert of_text(raised) == "oom"
    assert _first_sentence(raised) == "RuntimeError: CUDA error: out of memory"


def test_an_option_that_a_shipped_pipeline_refuses_has_no_line(tmp_path):
    job = Job(
        uid="p",
        runner=PREPARE_RUNNER,
        pipeline="pipelines.tabular",
        import_paths=(str(Path(sweeper.__file__).parents[1]),),
        prepared=str(tmp_path / "data"),
        data={"path": str(tmp_path / "nothing.csv")},
    )
    failure = run(job, SilentProgress())
    assert failure.kind == "user_error"
    assert ".py:" not in failure.message


def test_any_other_error_in_a_shipped_pipeline_is_told_with_its_file_and_line(tmp_path, monkeypatch):
    from sweeper.pipelines import tabular

    monkeypatch.setattr(tabular, "make_rows", None)
    job = Job(
        uid="p",
        runner=PREPARE_RUNNER,
        pipeline="pipelines.tabular",
        import_paths=(str(tmp_path),),
        prepared=str(tmp_path / "data"),
    )
    failure = run(job, SilentProgress())
    assert tabular.__file__ is not None
    lines = Path(tabular.__file__).read_text().splitlines()
    number = next(i for i, line in enumerate(lines, 1) if "= make_rows(" in line)
    assert failure.kind == "user_error"
    assert failure.message == (f"TypeError: 'NoneType' object is not callable ({tabular.__file__}:{number})")


def test_a_secret_is_struck_before_a_message_is_cut(monkeypatch):
    secret = "s3cret-canary-of-some-length"
    monkeypatch.setenv("MY_TOKEN", secret)
    for at in range(260, 310):
        message = _first_sentence("x" * at + f"?api={secret}&more")
        assert len(message) <= 300
        assert "s3c" not in message
