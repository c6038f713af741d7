"""`benchmarks/gpu.py`: limits, rows that survive, what is read back, and a rehearsal of call A."""

from __future__ import annotations

import json
import os
import re
import signal
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


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")]), **more}


def gpu(*arguments: object, **how: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **how)


def ran(code: str, *arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, env=environment(**more), capture_output=True, text=True, check=False)


def rows_of(path: Path, kind: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row["kind"] == kind]


def statuses(path: Path) -> dict[str, str]:
    return {row["step"]: row["status"] for row in rows_of(path, "step")}


def forgotten(log: Path) -> int:
    """Returns the process that a step which hangs has started, in a session of its own."""
    pids = re.findall(r"^forgotten: (\d+)$", log.read_text(encoding="utf-8"), re.M)
    return int(pids[-1])


def test_no_step_costs_another_and_none_leaves_a_process(tmp_path):
    failing = ("--fail", "tests", "trials=hang", "train=die")
    done = gpu("B", "--out", tmp_path, "--seconds", 2, *failing)
    assert done.returncode == 1
    assert statuses(tmp_path / "B.jsonl") == {"tests": "failed", "trials": "timeout", "train": "failed"}
    raised, hung, died = rows_of(tmp_path / "B.jsonl", "step")
    assert raised["result"] == "RuntimeError: broken on purpose"
    assert "broken on purpose" in done.stdout
    assert hung["seconds"] == pytest.approx(2, abs=2)
    assert hung["left_behind"] == 1
    assert died["result"] == "killed by signal 9"
    assert not Path(f"/proc/{forgotten(tmp_path / 'B.log')}").exists()
    assert "2 files, 0.0 MiB" in done.stdout


def test_a_call_that_is_cut_off_leaves_its_rows_and_no_process(tmp_path):
    command = [sys.executable, SCRIPT, "B", "--out", tmp_path, "--fail", "tests", "trials=hang"]
    log = tmp_path / "B.log"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as call:
        while not (log.exists() and b"forgotten: " in log.read_bytes()):
            assert call.poll() is None
            time.sleep(0.05)
        call.send_signal(signal.SIGTERM)
    assert call.returncode == 128 + signal.SIGTERM
    assert statuses(tmp_path / "B.jsonl") == {"tests": "failed"}
    assert not Path(f"/proc/{forgotten(log)}").exists()


SHORT_CALL = """
import sys
from pathlib import Path
from gpu_day import calls
calls.CALLS["B"] = 4.0
calls.RESERVE_SECONDS, calls.MIN_SECONDS = 1, 2
sys.exit(calls.run_call("B", Path(sys.argv[1])))
"""


def test_a_call_keeps_to_its_seconds(tmp_path):
    began = time.monotonic()
    # The first step takes all there is.
    ran(SHORT_CALL, tmp_path, SWEEPER_GPU_DAY_FAILING="tests=hang")
    assert time.monotonic() - began < 10
    assert statuses(tmp_path / "B.jsonl") == {"tests": "timeout", "trials": "skipped", "train": "skipped"}


def test_what_a_step_prints_is_cut_to_its_end(tmp_path):
    code = "import sys; from pathlib import Path; from gpu_day import calls\n"
    code += "calls.LOG_BYTES = 5; print(calls._shorten(Path(sys.argv[1]), 4))"
    log = tmp_path / "log"
    log.write_text("kept" + 1000 * "x" + "56789", encoding="utf-8")
    assert ran(code, log).stdout == "56789\n"
    assert log.read_text(encoding="utf-8") == "kept56789"


LISTED = """
import json
from gpu_day.alive import chosen
from gpu_day.calls import RESERVE_SECONDS
from gpu_day.steps import CALLS, STEPS
assert all(callable(step.load()) for step in STEPS)
boxes = [(step.call, step.name, step.seconds) for step in STEPS]
print(json.dumps([CALLS, RESERVE_SECONDS, boxes, list(chosen())]))
"""


def test_every_step_has_a_function_and_time_and_the_trials_are_spread_evenly():
    done = ran(LISTED)
    assert done.returncode == 0, done.stderr
    calls, reserve, boxes, trials = json.loads(done.stdout)
    # So a step that hangs costs only its own time.
    for call, most in calls.items():
        assert sum(seconds for of, _, seconds in boxes if of == call) <= most - reserve
    assert calls["A"] + calls["B"] <= 900 - 240
    assert max(calls.values()) <= 9 * 60
    page = (ROOT / "docs" / "gpus.md").read_text(encoding="utf-8")
    for call, name, seconds in boxes:
        if call in "AB":
            assert f"| {seconds:.0f} s | `{name}` |" in page
    assert set(Counter(name for name, _ in trials).values()) == {2}
    for field, count in (("compile.mode", 6), ("loader.kind", 3), ("precision.amp", 4)):
        assert set(Counter(changes[field] for _, changes in trials).values()) == {count}


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
KILLED = """
import sys
from pathlib import Path
from gpu_day import product
product.ROOT = Path(sys.argv[1])
product._kill_after_a_checkpoint(product.ROOT, sys.argv[1:])
"""


def test_a_training_is_killed_once_its_checkpoint_is_whole(tmp_path):
    stand_in = tmp_path / "sweeper"
    stand_in.mkdir()
    (stand_in / "__init__.py").touch()
    (stand_in / "__main__.py").write_text(WITH_A_CHECKPOINT, encoding="utf-8")
    done = ran(KILLED, tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.glob("train/day/checkpoints/*")] == ["000000007"]


RECORDED = """
from pathlib import Path
from gpu_day import recording
from gpu_day.steps import STEPS, Day
recording.READS, recording.SITUATIONS = 1, {"idle": ("", "")}
recording.nvml(Day(STEPS[0], None, Path(), rehearse=False, seconds=60))
"""


def test_the_gpu_that_is_recorded_is_the_one_that_a_load_uses(tmp_path):
    if compiler() is None:
        pytest.skip("no C compiler for the stand-in for NVML")
    gpus = [Gpu(f"GPU-{digit * 8}-0000-4000-8000-000000000001", f"NVIDIA {digit}") for digit in "ab"]
    stub = with_stub(build(tmp_path), write(tmp_path / "scenario", gpus))
    done = ran(RECORDED, **{**stub, "PYTHONPATH": environment()["PYTHONPATH"], "CUDA_VISIBLE_DEVICES": "1"})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[0])["name"] == "NVIDIA b"


def came_back(folder: Path, *rows: dict[str, Any], rehearsal: bool = False) -> Path:
    """Writes a call's file, which was cut off in a row."""
    first = {"kind": "call", "call": "A", "rehearsal": rehearsal, "device": DEVICE, "commit": "unknown"}
    first |= {"started": "2026-01-01T00:00:00", "python": "3.12", "cores": 16, "versions": {"torch": "2.11"}}
    step = {"kind": "step", "step": "oom", "status": "ok", "seconds": 3.0, "result": "1 | 2", "tail": ""}
    folder.mkdir(exist_ok=True)
    lines = [json.dumps(row) + "\n" for row in (first, *rows, step)]
    (folder / "A.jsonl").write_text("".join(lines) + '{"kind": "step", "st', encoding="utf-8")
    return folder


def test_what_came_back_becomes_results_and_a_section(tmp_path):
    out, into = tmp_path / "out", tmp_path / "checkout"
    results = into / "benchmarks" / "results" / "nvidia-made-up-40gb" / "gpu.json"
    results.parent.mkdir(parents=True)
    older = {"figure": "older", "value": 1, "device": DEVICE}
    results.write_text(json.dumps([older, {**older, "figure": "threads"}]), encoding="utf-8")
    page = into / "docs" / "gpus.md"
    page.parent.mkdir()
    text = (ROOT / "docs" / "gpus.md").read_text(encoding="utf-8")
    page.write_text(text, encoding="utf-8")
    shown = {"figure": "threads", "value": 1, "low": 1, "high": 1, "bar": "<= 1", "unit": "", "repeats": 1}
    probe = {"kind": "probe", "step": "probe", "process": 2, "workspace": ":4096:8", "question": "dropout"}
    trial = {"kind": "trial", "step": "trials", "number": 0, "pipeline": "tabular", "changes": {"x": 1}}
    change = {"changes": "precision=bf16", "kind": "", "fault": "its gradients differ", "extent": "9 steps"}
    came_back(
        out,
        {"kind": "figure", "step": "threads", **shown},
        {"kind": "nvml", "step": "nvml", "situation": "idle"},
        {**probe, "answer": {"bfloat16": 0.5}},
        {**trial, "outcome": "oom", "message": "too large"},
        {"kind": "change", "step": "tune-pictures", "change": change},
    )
    done = gpu("read", out, "--into", into, "--commit", "abc1234")
    assert done.returncode == 0, done.stderr
    about = {"command": "python benchmarks/gpu.py A --only threads", "commit": "abc1234", "device": DEVICE}
    assert json.loads(results.read_text(encoding="utf-8")) == [older, shown | about]
    recording = into / "tests" / "telemetry" / "recordings" / "nvidia-made-up-40gb-idle.json"
    assert json.loads(recording.read_text(encoding="utf-8")) == {"situation": "idle"}
    written = page.read_text(encoding="utf-8")
    head, _, tail = text.partition("Nothing yet")
    assert written.startswith(head)
    assert written.endswith(tail.partition("\n\n")[2])
    for line in (
        "| oom | ok | 3 | 1 \\| 2 |",
        "| dropout: bfloat16 | 2 :4096:8 | 0.5 |",
        "| tabular, 1 | oom: too large |",
        "| tune-pictures: precision=bf16 | left out, its gradients differ |",
    ):
        assert f"\n{line}\n" in written
    # Read again, a section takes the place of its former self, and others stay.
    page.write_text(written.replace(f"### {DEVICE}", f"### Another\n\nAs it was.\n\n### {DEVICE}"), "utf-8")
    gpu("read", out, "--into", into)
    again = page.read_text(encoding="utf-8")
    assert again.count(f"### {DEVICE}") == again.count("### Another\n\nAs it was.") == 1


def test_a_rehearsal_is_no_result_of_this_checkout(tmp_path):
    out = came_back(tmp_path / "out", rehearsal=True)
    done = gpu("read", out)
    assert done.returncode == 1
    assert "A rehearsal's figures are not results" in done.stdout
    (tmp_path / "empty").mkdir()
    assert gpu("read", tmp_path / "empty", "--into", tmp_path / "scratch").returncode == 1
    assert gpu("read", out, "--into", tmp_path / "scratch").returncode == 0


def test_a_mistake_says_what_to_write(tmp_path):
    done = gpu("A", "--out", tmp_path / "out", "--wheels", tmp_path)
    assert done.returncode == 1
    assert f"`gpu.py pack {tmp_path}` fetches them" in done.stderr
    done = gpu("A", "--out", tmp_path, "--fail", "trials")
    assert done.returncode == 2
    assert "--fail must name steps of call A, but got trials" in done.stderr


@pytest.mark.soak
def test_call_a_can_be_rehearsed_and_its_sweep_is_sent_at_home(tmp_path):
    out, into, bare = (tmp_path / name for name in ("out", "into", "bare"))
    # As on a machine that has no MLflow: an import of it fails.
    bare.mkdir()
    (bare / "mlflow.py").write_text("raise ModuleNotFoundError('No module named `mlflow`')\n", "utf-8")
    arguments = ("A", "--out", out, "--rehearse", "--fail", "tune-pictures")
    done = gpu(*arguments, env={**os.environ, "PYTHONPATH": str(bare)})
    assert done.returncode == 1
    others = ("threads", "probe", "watch", "quick", "oom", "nvml", "graph")
    ended = {"tune-pictures": "failed"} | dict.fromkeys(others, "ok")
    if compiler() is None:
        ended["nvml"] = "skipped"
    assert statuses(out / "A.jsonl") == ended, done.stdout
    (call,) = rows_of(out / "A.jsonl", "call")
    assert call["device"] == ("NVIDIA Standin" if compiler() else "no GPU")
    assert not any(row["left_behind"] for row in rows_of(out / "A.jsonl", "step"))
    answers = {row["question"]: row["answer"] for row in rows_of(out / "A.jsonl", "probe")}
    assert answers["versions"]["device"] == "NVIDIA Standin"
    assert answers["pinned"]["equal"]
    assert answers["fork"]["does nothing"] == 0
    assert "Cannot re-initialize CUDA" in answers["fork"]["uses the device"]
    assert all(answer["equal"] for answer in answers["repeats"].values())
    assert [row["outcome"] for row in rows_of(out / "A.jsonl", "oom")] == ["oom"]
    (quick,) = (row for row in rows_of(out / "A.jsonl", "step") if row["step"] == "quick")
    assert quick["result"].startswith("exit 7; ")
    assert len([*out.iterdir()]) <= 8
    done = gpu("read", out, "--into", into)
    assert done.returncode == 0, done.stderr
    assert "| oom | ok |" in (into / "docs" / "gpus.md").read_text(encoding="utf-8")
    with tarfile.open(out / "A-quick.tar.gz") as tar:
        tar.extractall(tmp_path / "home", filter="data")
    command = [sys.executable, "-m", "sweeper", "sync", "--json", "--home", str(tmp_path / "home")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (sent,) = json.loads(done.stdout)["sweeps"]
    assert sent["runs"] >= 1
    assert (sent["pending"], sent["problem"]) == ([], "")
