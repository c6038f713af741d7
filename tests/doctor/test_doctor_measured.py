"""What follows from a report of the ceilings job, and what becomes of a job that gives none."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from sweeper.core.measurement import Report
from sweeper.doctor import Check, State, measured
from sweeper.system.process import tree
from sweeper.telemetry.nvml.devices import GpuFacts

OK, WARN, FAIL = State.OK, State.WARN, State.FAIL

A10 = {"name": "NVIDIA A10", "capability": "8.6", "lacks": {}, "problem": ""}
VALUES: dict[str, Any] = {
    "torch": {"version": "2.13.0", "cuda": "13.0", "problem": "", "arch_list": ["sm_80", "sm_90"]},
    "cpu": {"name": "CPU, 2 cores", "lacks": {"precision.amp=fp16": "no fp16 here"}, "problem": ""},
    "gpus": [],
    "loader": {"problem": ""},
    "disk": {"problem": ""},
    "compile": {"device": "cpu", "seconds": 12.34, "cache": "cold", "problem": ""},
    "ceilings": [
        {"name": "cpu.matmul_fp32_one_thread", "value": 100.0, "unit": "GFLOP/s"},
        {"name": "cpu.matmul_fp32", "value": 190.0, "unit": "GFLOP/s"},
    ],
}


def assessed(facts: tuple[GpuFacts, ...] = (), **changes: Any) -> dict[str, Check]:
    """Returns the checks by name; a change `a__b=value` is of `values["a"]["b"]`."""
    values = copy.deepcopy(VALUES)
    for name, value in changes.items():
        *parents, last = name.split("__")
        target = values
        for parent in parents:
            target = target[parent]
        target[last] = value
    checks = list(measured.assess(values, facts, None))
    assert len({check.name for check in checks}) == len(checks)
    return {check.name: check for check in checks}


def test_all_is_well():
    checks = assessed()
    assert {name: check.state for name, check in checks.items()} == {
        "torch": OK,
        "precision": OK,
        "compile": OK,
    }
    assert checks["precision"].text == "fp32, bf16, TF32; left out of searches: fp16 (no fp16 here)"
    assert checks["compile"].text == "a small network's step was compiled in 12.3 s (cold cache)"


def test_precision_is_the_first_gpus_where_there_is_one():
    assert assessed(gpus=[A10])["precision"].text == "fp32, bf16, fp16, TF32"


def test_each_gpu_that_torch_sees_is_a_check():
    v100 = {**A10, "name": "Tesla V100", "capability": "7.0"}
    facts = tuple(GpuFacts(index=i, cuda_driver_version="12.8") for i in range(2))
    checks = assessed(facts, gpus=[A10, v100])
    assert (checks["cuda:0"].state, checks["cuda:1"].state) == (OK, FAIL)
    assert "cu126" in checks["cuda:1"].remedy


def test_a_cpu_build_beside_a_gpu_fails():
    facts = (GpuFacts(index=0, name="NVIDIA A10", cuda_driver_version="13.0"),)
    assert assessed(facts, torch__cuda="")["torch"].state is FAIL


@pytest.mark.parametrize(
    ("problem", "remedy"),
    [
        ("no C compiler was found", "build-essential"),
        ("Python.h was not found", "python3-dev"),
        ("InductorError: CppCompileError: boom", "eager"),
        ("not done within 30 s", "Run it again"),
    ],
)
def test_torch_compile_that_does_not_work_is_a_warning(problem, remedy):
    check = assessed(compile__problem=problem)["compile"]
    assert check.state is WARN
    assert problem in check.text
    assert remedy in check.remedy


@pytest.mark.parametrize(("name", "state"), [("cpu", FAIL), ("loader", FAIL), ("disk", WARN)])
def test_what_could_not_be_measured(name, state):
    check = assessed(**{f"{name}__problem": "RuntimeError: boom"})[name]
    assert check.state is state
    assert "RuntimeError: boom" in check.text


def test_a_job_that_had_no_disk_to_read():
    values = {**VALUES}
    del values["disk"]
    assert all(check.state is OK for check in measured.assess(values, (), None))


@pytest.mark.parametrize(("rate", "warns"), [(190.0, False), (116.0, False), (114.0, True), (50.0, True)])
def test_threads_that_do_not_help(rate, warns):
    ceilings = [{**VALUES["ceilings"][0]}, {**VALUES["ceilings"][1], "value": rate}]
    assert ("threads" in assessed(ceilings=ceilings)) is warns
    assert "threads" not in assessed(ceilings=ceilings[1:])


def test_a_gpu_that_is_slower_than_its_twins():
    rates = (20.0, 15.0, 19.0, 3.0)
    gpus = [{**A10, "name": "NVIDIA T4" if i == 3 else "NVIDIA A10"} for i in range(4)]
    ceilings = [
        {"name": f"cuda:{i}.matmul_fp32", "value": rate, "unit": "TFLOP/s"} for i, rate in enumerate(rates)
    ]
    values = {**VALUES, "gpus": gpus, "ceilings": ceilings}
    warned = [check for check in measured.assess(values, (), None) if check.state is WARN]
    assert [check.name for check in warned] == ["cuda:1"]
    assert "75% of the speed of the fastest NVIDIA A10" in warned[0].text


RUNNERS = """
import os, sys, time
from sweeper.core.measurement import Report
from sweeper.system.process import tree
from sweeper.errors import UserError

def good(job, progress):
    return Report(values={"cache": job.cache, "device": job.device, "spin": os.environ["GOMP_SPINCOUNT"]})

def raises(job, progress):
    progress.stage("cuda:0")
    print("what it said last")
    raise RuntimeError("boom")

def dies(job, progress):
    progress.stage("cuda:0")
    print("what it said last", flush=True)
    os.kill(os.getpid(), 11)

def slow(job, progress):
    time.sleep(1)
    return Report(values={"seconds": job.timeout_seconds})

def hangs(job, progress):
    progress.stage("compile")
    time.sleep(60)
"""


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs a job in a real process; returns what it gave, and the folders that are left of it."""
    (tmp_path / "doctor_runners.py").write_text(RUNNERS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2]}")
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))

    def measure(runner: str, num_gpus: int | None = 0) -> tuple[Report | Check, list[Path]]:
        found = measured.measure(tmp_path / "cache", num_gpus, f"doctor_runners:{runner}")
        return found, list((tmp_path / "temporary").iterdir())

    return measure


def test_a_job_that_reports_leaves_nothing_behind(run, tmp_path):
    found, left = run("good")
    assert isinstance(found, Report), found
    # As trials run: the same environment.
    assert found.values == {"cache": str(tmp_path / "cache"), "device": "auto", "spin": "1000"}
    assert left == []


def test_each_gpu_has_time_of_its_own(run, monkeypatch):
    # Too little for the job alone, and nothing after that.
    monkeypatch.setattr(measured, "TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(measured, "END_SECONDS", 0.0)
    found, _ = run("slow", 8)
    assert isinstance(found, Report), found
    assert found.values == {"seconds": 0.5 + 8 * measured.GPU_SECONDS}


def test_no_room_for_the_job(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    found = measured.measure(None)
    assert isinstance(found, Check)
    assert found.state is FAIL
    assert "TMPDIR" in found.remedy


def test_told_to_end_it_ends_the_job(tmp_path):
    (tmp_path / "doctor_runners.py").write_text(RUNNERS)
    script = "from sweeper.doctor import measured; measured.measure(None, 0, 'doctor_runners:hangs')"
    path = f"{tmp_path}:{Path(__file__).parents[2]}"
    doctor = subprocess.Popen(
        [sys.executable, "-c", script],
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)},
    )
    # The keeper and the job itself.
    deadline = time.monotonic() + 20
    while len(family := list(tree(doctor.pid))) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(family) == 3
    time.sleep(0.3)
    began = time.monotonic()
    doctor.send_signal(signal.SIGINT)
    assert doctor.wait(timeout=20) != 0
    assert time.monotonic() - began < 5
    assert not any(Path(f"/proc/{pid}").exists() for pid in family)
    assert list(tmp_path.glob("sweeper-doctor-*")) == []


def test_a_job_that_must_ask_nothing_of_the_gpus_runs_on_the_cpu(run):
    found, _ = run("good", None)
    assert isinstance(found, Report), found
    assert found.values["device"] == "cpu"


@pytest.mark.parametrize(
    ("runner", "says"),
    [
        ("raises", "boom"),
        ("dies", "what it said last"),
        pytest.param("hangs", "no result within 2 s (in stage `compile`)", marks=pytest.mark.slow),
        ("missing", "missing"),
    ],
)
def test_a_job_without_a_report_fails_and_keeps_its_log(run, monkeypatch, runner, says):
    monkeypatch.setattr(measured, "TIMEOUT_SECONDS", 2.0)
    found, (folder,) = run(runner)
    assert isinstance(found, Check)
    assert (found.name, found.state) == ("measuring", FAIL)
    assert says in found.text
    assert "\n" not in found.text
    assert str(folder / "worker.log") in found.remedy
    assert (folder / "worker.log").exists()
