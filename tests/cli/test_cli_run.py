"""`sweeper run` with what people do to it: mistakes, Ctrl-C, SIGTERM, a reader that goes away."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sweeper.launch.local import leftovers

REPOSITORY = Path(__file__).parents[2]

YAML = """\
name: tiny
pipeline: pipelines.tabular
data: {rows: 2000, features: 4}
space:
  batch_size: {type: int, low: 32, high: 256, log: true}
  loader.drop_last: {type: categorical, choices: [true, false]}
fix: {model.hidden_size: 8}
baseline: {loader.kind: rows, batch_size: 32}
measure: {window_seconds: 0.05, repeats: 1, quality_samples: 0, warmup_cap_seconds: 0.1, trace: false}
search: {trials: 2, minutes: 5}
confirm: {top: 1, rounds: 2, precision: 0.9}
"""

RAISING = """\
from pipelines.tabular import build, prepare

def {function}(*arguments):
    raise ValueError("a mistake of mine")
"""


@pytest.fixture
def staged(sweeper):
    """The folder that it runs in has the pipelines, and a space."""
    shutil.copytree(REPOSITORY / "pipelines", "pipelines", ignore=shutil.ignore_patterns("__pycache__"))
    Path("tiny.yaml").write_text(YAML)


@pytest.fixture
def run(staged, sweeper):
    """`sweeper run tiny.yaml ...` in a folder with the pipelines."""
    return lambda *arguments: sweeper("run", *(arguments or ("tiny.yaml",)))


def one_line(done: subprocess.CompletedProcess[str], code: int, *says: str) -> None:
    assert done.returncode == code, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("sweeper: ")
    assert "Traceback" not in done.stdout + done.stderr
    for text in says:
        assert text in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nowhere.yaml",), ("nowhere.yaml",)),
        (("tiny.yaml", "--set", "serach.trials=3"), ("Did you mean `search", "--set")),
        (("tiny.yaml", "--set", "search.trials=many"), ("search.trials", "many")),
        (("tiny.yaml", "--set", "data.path=nowhere"), ("`data.path` must exist", "nowhere")),
        (("tiny.yaml", "--set", "pipeline=pipelines.none"), ("pipelines/none.py",)),
        (("tiny.yaml", "--device", "gpu"), ("`--device` must be `cpu` or `cuda:N`", "'gpu'")),
    ],
)
def test_a_mistake_in_the_specification_starts_nothing(staged, in_process, arguments, says):
    one_line(in_process("run", *arguments), 2, *says)
    assert not Path("mlruns").exists()


def test_an_unknown_key_is_named_with_its_place(staged, in_process):
    Path("tiny.yaml").write_text(YAML.replace("repeats: 1", "repeat: 1"))
    one_line(in_process("run", "tiny.yaml"), 2, "tiny.yaml:9:", "Did you mean `", "repeats`?")


@pytest.mark.slow
def test_an_unreadable_file_and_an_empty_folder(staged, in_process):
    Path("broken").mkdir()
    Path("broken/a.parquet").write_bytes(b"PAR1 not really")
    one_line(in_process("run", "tiny.yaml", "--set", "data.path=broken"), 2, "a.parquet")
    Path("empty").mkdir()
    one_line(in_process("run", "tiny.yaml", "--set", "data.path=empty"), 2, "empty")
    assert not list(Path("mlruns").glob("sweeps/*"))


def test_a_gpu_that_is_not_there_is_not_replaced(run, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    one_line(run("tiny.yaml", "--device", "cuda:0"), 2, "`execution.gpus` needs a GPU", "--device cpu")
    assert not list(Path("mlruns").glob("sweeps/*"))


@pytest.mark.slow
def test_a_pipeline_that_raises_is_one_line_with_the_place(run, in_process):
    Path("mine.py").write_text(RAISING.format(function="prepare"))
    place = "ValueError: a mistake of mine (mine.py:4)"
    one_line(in_process("run", "tiny.yaml", "--set", "pipeline=mine"), 2, place)
    Path("mine.py").write_text(RAISING.format(function="build"))
    one_line(run("tiny.yaml", "--set", "pipeline=mine"), 4, "the baseline did not run", place)


def test_a_full_disk_and_a_read_only_home(run):
    if subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode:
        pytest.skip("this machine allows no user namespaces")
    Path("small").mkdir()
    for options, says in (("size=4k", "No space left"), ("size=1m,ro", "Read-only file system")):
        fill = "true" if "ro" in options else "head -c 4096 /dev/zero > small/filler"
        command = (
            f"mount -t tmpfs -o {options} none small; {fill};"
            f" {sys.executable} -m sweeper run tiny.yaml --home small/home; code=$?; ls -A small/home/sweeps;"
            " exit $code"
        )
        done = subprocess.run(
            ["unshare", "-Urm", "sh", "-c", command],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )
        first, *others = done.stderr.splitlines()
        assert done.returncode == 6, done.stderr
        assert first.startswith("sweeper: cannot write in ")
        assert says in first
        assert all(line.startswith("ls: ") for line in others)
        assert done.stdout == ""


def started(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen(
        [sys.executable, "-m", "sweeper", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.soak)]
)
def test_told_to_end_it_ends_everything_and_says_how_to_go_on(run, number, code):
    supervisor = started("run", "tiny.yaml", "--set", "search.trials=500")
    folder = Path("mlruns/sweeps/tiny")
    deadline = time.monotonic() + 90
    while not (folder / "trials/0002/config.json").exists():
        assert supervisor.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    supervisor.send_signal(number)
    _, said = supervisor.communicate(timeout=60)
    assert supervisor.returncode == code
    (line,) = said.strip().splitlines()
    assert "run the same command to continue" in line
    assert leftovers(folder) == []
    assert not (folder / "result.json").exists()


@pytest.mark.slow
def test_a_whole_sweep_its_repetition_a_reader_that_goes_away_and_a_confirmation(run, sweeper):
    done = run()
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "sweeper show tiny" in done.stdout
    assert "mlflow ui --backend-store-uri sqlite:///" in done.stdout
    again = run()
    assert again.returncode == 0
    assert again.stdout.splitlines()[0] == "`tiny` is already finished; nothing was run."
    gone(started("show", "tiny"))
    gone(started("show", "tiny", "--json"))
    confirmed_again_and_soaked(sweeper("confirm", "tiny", "--json", "--soak", "2s"))


def confirmed_again_and_soaked(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode == 4:
        pytest.skip("the tiny sweep has no winner here")
    found = json.loads(done.stdout)
    assert done.returncode == (0 if found["holds"] else 1)
    assert found.keys() == {"name", "number", "holds", "before", "now", "soak"}
    assert found["now"].keys() == {"ratio", "low", "high", "throughput"}
    assert found["soak"]["seconds"] >= 1.0


def gone(process: subprocess.Popen[str]) -> None:
    """Whoever read its output has gone; it ends in order and complains to nobody."""
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    with process.stderr:
        assert process.stderr.read() == ""


@pytest.mark.slow
def test_what_mlflow_does_not_take_waits(run):
    """A file where its database should be."""
    Path("mlruns/mlflow.db").mkdir(parents=True)
    quickly = ("tiny.yaml", "--set", "confirm.rounds=0")
    done = run(*quickly)
    assert done.returncode == 7, done.stderr
    assert "runs are not in MLflow yet" in done.stdout
    Path("mlruns/mlflow.db").rmdir()
    assert run(*quickly).returncode == 0
