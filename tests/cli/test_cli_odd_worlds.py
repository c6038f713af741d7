"""The command line in worlds that are not as usual: locales, odd folders, trials that print, spoilt files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
MAX_LOG_BYTES = 20 * 1024 * 1024

YAML = """\
name: tiny
pipeline: loud
data: {rows: 2000, features: 4}
space:
  batch_size: {type: int, low: 32, high: 256, log: true}
fix: {model.hidden_size: 8}
baseline: {loader.kind: rows, batch_size: 32}
measure: {window_seconds: 0.05, repeats: 1, quality_samples: 0, warmup_cap_seconds: 0.1, trace: false}
search: {trials: 2, minutes: 5}
confirm: {rounds: 0}
execution: {gpus: 0}
"""
QUIET = "from pipelines.tabular import build, prepare\n"
LOUD = '''\
import os
from pipelines import tabular
from pipelines.tabular import prepare

FORGED = b'{"type": "report", "values": {"forged": 1}}\\n{"result": {"type": "report", "values": {}}}\\n'


def build(config, prepared):
    """Prints 10 MB of colours, bytes that are no text, and what results look like."""
    for descriptor in (1, 2):
        for _ in range(5):
            os.write(descriptor, FORGED)
            os.write(descriptor, b"\\x1b[31m\\x1b]0;title\\x07\\xff\\xfe\\x9b2J\\r\\n" * 50_000)
    return tabular.build(config, prepared)
'''
ENDLESS = '''\
import os
from pipelines import tabular
from pipelines.tabular import prepare


def build(config, prepared):
    """The baseline is quiet; all others print for ever."""
    while config.loader.kind != "rows":
        os.write(1, b"y\\n" * 32768)
    return tabular.build(config, prepared)
'''


def sweeper(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    known = {
        key: value for key, value in os.environ.items() if not key.startswith(("LC_", "LANG", "SWEEPER"))
    }
    return subprocess.run(
        [sys.executable, "-m", "sweeper", *arguments],
        capture_output=True,
        cwd=cwd,
        env={**known, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "120", **environment},
        timeout=200,
    )


def in_order(done: subprocess.CompletedProcess[bytes], code: int = 0) -> None:
    said = done.stdout + done.stderr
    assert done.returncode == code, said[-3000:]
    assert b"Traceback" not in said
    assert not set(b"\x1b\x07\x9b\x00") & set(said.replace(b"\xc2\x9b", b"?"))


def staged(folder: Path, pipeline: str) -> Path:
    folder.mkdir(exist_ok=True)
    shutil.copytree(
        REPOSITORY / "pipelines", folder / "pipelines", ignore=shutil.ignore_patterns("__pycache__")
    )
    (folder / "loud.py").write_text(pipeline)
    (folder / "tiny.yaml").write_text(YAML)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", [b"caf\xe9", pytest.param("日本 \u202e x".encode(), marks=pytest.mark.soak)])
def test_a_locale_without_utf_8_and_a_folder_of_odd_bytes(tmp_path: Path, name: bytes):
    world = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    folder = staged(tmp_path / os.fsdecode(name), QUIET)
    # 7: MLflow takes no path that is not text; nothing else depends on it.
    ran = sweeper("run", "tiny.yaml", cwd=folder, **world)
    in_order(ran, 7 if ran.returncode == 7 else 0)
    done = sweeper("show", "tiny", "--json", cwd=folder, **world)
    in_order(done)
    assert len(json.loads(done.stdout)["trials"]) == 3
    for command in (["list"], ["show", "tiny"], ["report", "tiny"], ["export", "tiny", "--trial", "0"]):
        in_order(sweeper(*command, cwd=folder, **world))


@pytest.mark.slow
def test_what_a_trial_prints_is_bounded_believed_by_nobody_and_no_screens(tmp_path: Path):
    folder = staged(tmp_path / "loud", LOUD)
    in_order(sweeper("run", "tiny.yaml", cwd=folder))
    logs = list(folder.glob("mlruns/sweeps/tiny/trials/*/worker.log"))
    assert len(logs) == 3
    assert all(0 < log.stat().st_size < MAX_LOG_BYTES for log in logs)
    done = sweeper("show", "tiny", "--json", cwd=folder)
    in_order(done)
    assert all(trial["outcome"] == "measured" for trial in json.loads(done.stdout)["trials"])
    in_order(sweeper("show", "tiny", cwd=folder))


@pytest.mark.slow
def test_endless_output_ends_with_the_trials_time(tmp_path: Path):
    folder = staged(tmp_path / "endless", ENDLESS)
    sets = ("--set", "execution.trial_timeout_minutes=0.05", "--set", "search.trials=1")
    in_order(sweeper("run", "tiny.yaml", *sets, cwd=folder))
    outcomes = [
        json.loads(path.read_text()) for path in folder.glob("mlruns/sweeps/tiny/trials/*/outcome.json")
    ]
    assert sorted(each.get("kind", "measured") for each in outcomes) == ["measured", "timeout"]
    assert all(
        log.stat().st_size < MAX_LOG_BYTES for log in folder.glob("mlruns/sweeps/tiny/trials/*/worker.log")
    )


def one_line(done: subprocess.CompletedProcess[bytes], code: int, *says: str) -> None:
    in_order(done, code)
    text = done.stderr.decode()
    assert text.count("\n") == 1, text
    for each in says:
        assert each in text


def test_a_home_that_is_a_file(tmp_path: Path):
    folder = staged(tmp_path / "quiet", QUIET)
    (folder / "home").write_text("mine")
    for command in (["run", "tiny.yaml"], ["list"], ["show", "tiny"]):
        one_line(sweeper(*command, "--home", "home", cwd=folder), 2, "`--home` must be a folder", "'home'")
    assert (folder / "home").read_text() == "mine"
    one_line(sweeper("list", "--home", "x" * 300, cwd=folder), 2, "`--home` must be", "File name too long")


@pytest.mark.parametrize("name", ["sweeps", "train", "cache", "cache/compile"])
def test_a_file_in_the_place_of_a_folder_of_the_home(tmp_path: Path, in_process, name: str):
    (tmp_path / "loud.py").write_text(QUIET)
    (tmp_path / "tiny.yaml").write_text(YAML)
    (tmp_path / "home" / name).parent.mkdir(parents=True)
    (tmp_path / "home" / name).write_text("mine")
    commands = (
        *(["run", "tiny.yaml"], ["run", "tiny.yaml", "--dry-run"], ["check", "tiny.yaml", "--deep"]),
        *(["list"], ["show", "tiny"], ["confirm", "tiny"], ["report", "tiny"], ["compare", "tiny", "tiny"]),
        *(["export", "tiny"], ["train", "best.yaml"], ["sync"], ["ui"], ["doctor"]),
    )
    for command in commands:
        done = in_process(*command, "--home", "home")
        said = f"sweeper: `home/{name}` must be a folder, but got a file. Move it away, or choose another"
        assert (done.returncode, done.stderr) == (2, f"{said} folder with --home.\n")
    assert (tmp_path / "home" / name).read_text() == "mine"


@pytest.mark.slow
def test_an_error_in_prepare_names_its_line_and_keeps_the_traceback(tmp_path: Path):
    code = "from pipelines.tabular import build\n\n\ndef prepare(data):\n    return {}['price']\n"
    folder = staged(tmp_path / "wrong", code)
    done = sweeper("run", "tiny.yaml", cwd=folder)
    (log,) = (folder / "mlruns" / "cache").glob("*.log")
    one_line(done, 2, f"KeyError: 'price' (loud.py:5). The full traceback is in {log}.")
    assert f'File "{folder}/loud.py", line 5, in prepare' in log.read_text()


def test_a_folder_that_is_gone(tmp_path: Path):
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"cd {gone} && rmdir {gone} && exec {sys.executable} -m sweeper list"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    one_line(
        subprocess.run(["sh", "-c", command], env=environment, capture_output=True),
        2,
        "cd",
        "was removed",
    )


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams(finished_home: Path, tmp_path: Path, closed: str):
    command = f"{sys.executable} -m sweeper show toy --json --home {finished_home} {closed}"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    assert bool(done.stdout) == (closed in ("2>&-", "<&-"))


@pytest.mark.parametrize("name", ["../toy", "toy/../toy", "/", "", ".", "x" * 300, "toy\n", "tøy"])
def test_a_name_is_no_path(finished_home: Path, in_process, name: str):
    done = in_process("show", "--home", str(finished_home), "--", name)
    assert done.returncode == 2
    assert done.stderr.startswith("sweeper: There is no sweep called")


@pytest.mark.slow
def test_a_spoilt_outcome_is_one_line_for_every_command(finished_home: Path, tmp_path: Path):
    home = tmp_path / "home"
    shutil.copytree(finished_home, home)
    shutil.copy(finished_home.parent / "toy_pipeline.py", tmp_path)
    path = home / "sweeps/toy/trials/0003/outcome.json"
    path.write_bytes(path.read_bytes()[:100])
    # A list reads no trial.
    in_order(sweeper("list", "--home", str(home), cwd=tmp_path))
    for command in (["show", "toy"], ["report", "toy"], ["export", "toy"], ["sync", "toy"]):
        one_line(sweeper(*command, "--home", str(home), cwd=tmp_path), 6, str(path), "Restore it")


def test_a_spoilt_sweep_costs_the_list_no_other(sweeper, finished_home, tmp_path):
    home = tmp_path / "copy"
    shutil.copytree(finished_home, home)
    shutil.copytree(home / "sweeps" / "toy", home / "sweeps" / "broken")
    (home / "sweeps" / "broken" / "result.json").write_text("{")
    listed = sweeper("list", "--home", str(home))
    assert listed.stdout.startswith("toy ")
    assert "broken/result.json is damaged" in listed.stderr
    assert listed.returncode == 6


def test_the_home_of_nobody_is_no_sweep(sweeper, finished_home):
    compared = sweeper("compare", "toy", "~nobody-here/sweeps/x", "--home", str(finished_home))
    assert (compared.returncode, compared.stdout) == (2, "")
    assert compared.stderr.startswith("sweeper: ")
