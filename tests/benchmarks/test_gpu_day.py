"""`benchmarks/gpu.py`: limits, rows that survive, what is read back, and a rehearsal of call 1."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from stub_nvml import Gpu, build, compiler, write
from stub_nvml import environment as with_stub

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu.py"
DEVICE = "NVIDIA Made-Up 40GB"

STAND_IN = '''
"""In place of gpu.py: each step does what its name is made to mean here."""
import json, os, subprocess, sys, time

name, rows = sys.argv[2], sys.argv[sys.argv.index("--rows") + 1]
with open(rows, "a", encoding="utf-8") as file:
    file.write(json.dumps({"kind": "seen", "step": name}) + "\\n")
if name == "threads":
    print("much was found")
elif name == "nvml":
    # In a session of its own, as a trial server is, and forgotten.
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    with open(os.environ["CHILD"], "w", encoding="utf-8") as file:
        file.write(str(child.pid))
    time.sleep(600)
elif name == "pytest_gpu":
    raise RuntimeError("broken on purpose")
elif name == "oom":
    print("there is nothing to run out of")
    sys.exit(77)
'''
DRIVER = """
import sys
from dataclasses import replace
from pathlib import Path
from gpu_day import calls
calls.SCRIPT, calls.MIN_SECONDS = Path(sys.argv[1]), 1
calls.STEPS = [replace(step, seconds=float(sys.argv[3])) for step in calls.STEPS]
sys.exit(calls.run_call(1, Path(sys.argv[2]), wheels=None, rehearse=False, minutes=float(sys.argv[4])))
"""


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")]), **more}


def gpu(*arguments: object, **how: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **how)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def called(tmp_path: Path, seconds: float, minutes: float) -> tuple[Any, list[dict[str, Any]]]:
    """Runs call 1 with stand-ins for its steps, each of which has so many seconds."""
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN, encoding="utf-8")
    arguments = [script, tmp_path / "out", seconds, minutes]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, *map(str, arguments)],
        env=environment(CHILD=str(tmp_path / "child")),
        capture_output=True,
        text=True,
        check=False,
    )
    return done, rows_of(tmp_path / "out" / "call-1.jsonl")


@pytest.mark.slow
def test_no_step_costs_another_and_none_leaves_a_process(tmp_path):
    done, rows = called(tmp_path, seconds=2, minutes=9)
    ended = {row["step"]: row for row in rows if row["kind"] == "step"}
    assert {name: row["status"] for name, row in ended.items()} == {
        "threads": "ok",
        "nvml": "timeout",
        "pytest_gpu": "failed",
        "oom": "skipped",
        "trials": "ok",
    }
    assert ended["threads"]["found"] == "much was found"
    assert ended["oom"]["found"] == "there is nothing to run out of"
    assert "broken on purpose" in ended["pytest_gpu"]["tail"]
    assert ended["nvml"]["seconds"] == pytest.approx(2, abs=2)
    assert ended["nvml"]["left_behind"] == 1
    # What a step had found before it was killed is there.
    assert [row["step"] for row in rows if row["kind"] == "seen"] == list(ended)
    assert done.returncode == 1
    assert "broken on purpose" in done.stdout
    child = int((tmp_path / "child").read_text(encoding="utf-8"))
    assert not Path(f"/proc/{child}").exists()


@pytest.mark.slow
def test_a_call_keeps_to_its_minutes(tmp_path):
    began = time.monotonic()
    # Beyond what is kept for the end there are ten seconds: the second step takes all of them.
    _, rows = called(tmp_path, seconds=60, minutes=0.5)
    assert time.monotonic() - began < 30
    status = {row["step"]: row["status"] for row in rows if row["kind"] == "step"}
    assert status == {"threads": "ok", "nvml": "timeout"} | dict.fromkeys(
        ("pytest_gpu", "oom", "trials"), "skipped"
    )


def test_every_step_has_a_function_and_the_trials_are_spread_evenly():
    code = """
from gpu_day.steps import STEPS
assert all(callable(step.load()) for step in STEPS)
import json
from gpu_day.alive import drawn
print(json.dumps(list(drawn())))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    trials = json.loads(done.stdout)
    assert len(trials) == 30
    assert set(Counter(name for name, _ in trials).values()) == {5}
    for field, least in (("compile.mode", 6), ("loader.kind", 7), ("precision.amp", 10)):
        counts = Counter(changes[field] for _, changes in trials)
        assert min(counts.values()) == least, (field, counts)


@pytest.mark.slow
def test_a_step_by_itself_finds_the_project_in_what_it_starts(tmp_path):
    # As where nothing is installed, and nothing says where the benchmarks are.
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = gpu("step", "overhead", "--rehearse", "--out", tmp_path, env=bare)
    assert done.returncode == 0, done.stdout + done.stderr


WITH_A_CHECKPOINT = """
import sys, time
from pathlib import Path

making = Path(sys.argv[1]) / "train" / "day" / "checkpoints" / ".making-000000007"
making.mkdir(parents=True)
(making / "model.safetensors").touch()
time.sleep(1)
making.rename(making.with_name("000000007"))
time.sleep(600)
"""


def test_a_training_is_killed_once_its_checkpoint_is_whole(tmp_path):
    stand_in = tmp_path / "sweeper"
    stand_in.mkdir()
    (stand_in / "__init__.py").touch()
    (stand_in / "__main__.py").write_text(WITH_A_CHECKPOINT, encoding="utf-8")
    code = f"""
from pathlib import Path
from gpu_day import product
product.ROOT = Path({str(tmp_path)!r})
product._kill_after_a_checkpoint(product.ROOT, [{str(tmp_path)!r}])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.glob("train/day/checkpoints/*")] == ["000000007"]


def test_the_gpu_that_is_recorded_is_the_one_that_a_load_uses(tmp_path):
    if compiler() is None:
        pytest.skip("no C compiler for the stand-in for NVML")
    gpus = [Gpu(f"GPU-{digit * 8}-0000-4000-8000-000000000001", f"NVIDIA {digit}") for digit in "ab"]
    stub = with_stub(build(tmp_path), write(tmp_path / "scenario", gpus))
    code = """
from pathlib import Path
from gpu_day import recording
from gpu_day.steps import Day, step_of
recording.READS, recording.SITUATIONS = 1, {"idle": ("", "")}
recording.nvml(Day(step_of("nvml"), None, Path(), rehearse=False, seconds=60))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**stub, "PYTHONPATH": environment()["PYTHONPATH"], "CUDA_VISIBLE_DEVICES": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[0])["name"] == "NVIDIA b"


# What came back


def figure(name: str, value: float, **more: Any) -> dict[str, Any]:
    row = {"kind": "figure", "step": "mlp", "benchmark": "trainer", "figure": name, "value": value}
    return {
        **row,
        "low": value,
        "high": value,
        "bar": ">= 0.95",
        "unit": "x",
        "repeats": 3,
        "met": True,
        **more,
    }


def came_back(folder: Path, *rows: dict[str, Any], call: int = 3, rehearsal: bool = False) -> Path:
    """Writes a call's file."""
    first = {"kind": "call", "call": call, "rehearsal": rehearsal, "device": DEVICE, "commit": "unknown"}
    first |= {"started": "2026-01-01T00:00:00", "python": "3.12", "cores": 16, "versions": {"torch": "2.11"}}
    step = {"kind": "step", "step": "mlp", "status": "ok", "seconds": 3.0, "found": "1 | 2", "tail": ""}
    folder.mkdir(exist_ok=True)
    lines = [json.dumps(row) + "\n" for row in (first, *rows, step)]
    with (folder / f"call-{call}.jsonl").open("a", encoding="utf-8") as file:
        file.write("".join(lines) + '{"kind": "step", "st')
    return folder


def test_what_came_back_becomes_results_and_a_section(tmp_path):
    out, into = tmp_path / "out", tmp_path / "checkout"
    results = into / "benchmarks" / "results" / "nvidia-made-up-40gb" / "trainer.json"
    results.parent.mkdir(parents=True)
    old = {"figure": "older", "value": 1, "device": DEVICE}
    results.write_text(json.dumps([old, {**old, "figure": "MLP / bare"}]), encoding="utf-8")
    page = into / "docs" / "gpus.md"
    page.parent.mkdir()
    head, _, tail = (ROOT / "docs" / "gpus.md").read_text(encoding="utf-8").partition("## Devices")
    page.write_text(head + "## Devices" + tail, encoding="utf-8")
    missed = figure("LSTM / bare", 0.9, met=False)
    came_back(out, figure("MLP / bare", 0.97), missed, {"kind": "nvml", "step": "nvml", "situation": "idle"})
    done = gpu("read", out, "--into", into, "--commit", "abc1234")
    assert done.returncode == 0, done.stderr
    rows = json.loads(results.read_text(encoding="utf-8"))
    assert rows[0] == old
    found = {name: value for name, value in figure("MLP / bare", 0.97).items() if name in rows[1]}
    about = {"command": "python benchmarks/gpu.py 3 --only mlp", "commit": "abc1234", "device": DEVICE}
    assert rows[1] == found | about
    assert set(found) == {"figure", "value", "low", "high", "bar", "unit", "repeats"}
    recording = into / "tests" / "telemetry" / "recordings" / "nvidia-made-up-40gb-idle.json"
    assert json.loads(recording.read_text(encoding="utf-8")) == {"situation": "idle"}
    text = page.read_text(encoding="utf-8")
    assert text.startswith(head)
    assert "| mlp | ok | 3 | 1 \\| 2 |" in text
    assert "| LSTM / bare | 0.9 x |  | >= 0.95 | **missed** |" in text
    # Read again, a section takes the place of its former self, and others stay.
    other = text.replace(f"### {DEVICE}", f"### Another GPU\n\nAs it was.\n\n### {DEVICE}")
    page.write_text(other, encoding="utf-8")
    gpu("read", out, "--into", into)
    again = page.read_text(encoding="utf-8")
    assert again.count(f"### {DEVICE}") == again.count("### Another GPU\n\nAs it was.") == 1


def test_a_rehearsal_is_no_result_of_this_checkout(tmp_path):
    out = came_back(tmp_path / "out", figure("MLP / bare", 0.97), rehearsal=True)
    done = gpu("read", out)
    assert done.returncode == 1
    assert "A rehearsal's figures are not results" in done.stdout
    (tmp_path / "empty").mkdir()
    assert gpu("read", tmp_path / "empty", "--into", tmp_path / "scratch").returncode == 1
    assert gpu("read", out, "--into", tmp_path / "scratch").returncode == 0


def test_without_wheels_it_says_what_fetches_them(tmp_path):
    done = gpu("1", "--out", tmp_path / "out", "--wheels", tmp_path, "--rehearse")
    assert done.returncode == 1
    assert f"`gpu.py pack {tmp_path}` fetches them" in done.stderr


@pytest.mark.soak
def test_call_1_can_be_rehearsed(tmp_path):
    out, into = tmp_path / "out", tmp_path / "into"
    done = gpu("1", "--out", out, "--rehearse")
    rows = rows_of(out / "call-1.jsonl")
    status = {row["step"]: row["status"] for row in rows if row["kind"] == "step"}
    nvml = "ok" if compiler() else "skipped"
    assert status == dict.fromkeys(("threads", "pytest_gpu", "oom", "trials"), "ok") | {"nvml": nvml}, (
        done.stdout
    )
    assert done.returncode == 0
    trials = [row for row in rows if row["kind"] == "trial"]
    assert len(trials) == 4
    # Some processors have no LSTM in bfloat16.
    assert sum(row["outcome"] == "measured" or "the LSTM" in row["message"] for row in trials) >= 3
    assert [row["outcome"] for row in rows if row["kind"] == "oom"] == ["oom"]
    assert not any(row["left_behind"] for row in rows if row["kind"] == "step")
    done = gpu("read", out, "--into", into)
    assert done.returncode == 0, done.stderr
    assert list(into.glob("benchmarks/results/*/gpu.json"))
    assert "| oom | ok |" in (into / "docs" / "gpus.md").read_text(encoding="utf-8")


@pytest.mark.soak
def test_a_sweep_without_mlflow_is_sent_at_home(tmp_path):
    # As on a machine that has none: an import of it fails.
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "mlflow.py").write_text(
        "raise ModuleNotFoundError('No module named `mlflow`')\n", encoding="utf-8"
    )
    done = gpu(
        "2", "--out", tmp_path, "--rehearse", "--only", "sweep", env={**os.environ, "PYTHONPATH": str(bare)}
    )
    assert done.returncode == 0, done.stdout
    (step,) = (row for row in rows_of(tmp_path / "call-2.jsonl") if row["kind"] == "step")
    assert step["found"].startswith("exit 7; ")
    with tarfile.open(tmp_path / "call-2-home.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    command = [sys.executable, "-m", "sweeper", "sync", "--json", "--home", str(tmp_path / "home")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (sent,) = json.loads(done.stdout)["sweeps"]
    assert sent["runs"] >= 1
    assert (sent["pending"], sent["problem"]) == ([], "")
