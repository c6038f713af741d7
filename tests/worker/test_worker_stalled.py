"""Jobs that hang, in real processes: they end in time, and their log says where they hung."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from parts.faults import WAIT_SECONDS

from sweeper.core.config import TrialConfig
from sweeper.core.job import LOG, PREPARE_RUNNER, Job, MeasurePlan, read_outcome, write_job
from sweeper.core.measurement import FailureKind, Report

REPOSITORY = Path(__file__).parents[2]
STALL_SECONDS = 1.0

RUNNER = """
import ctypes, os, signal, threading, time
from sweeper.core.measurement import Report

def some_steps(progress, stage="warmup"):
    progress.stage(stage)
    for _ in range(200):
        time.sleep(0.005)
        progress.steps.add()

def fork(function):
    pid = os.fork()
    if pid == 0:
        function()
        os._exit(0)
    return pid

def asleep_in_the_child():
    # As loader workers do: it ends with its parent.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    time.sleep(60)

def waiting_for_the_child(pid):
    os.waitpid(pid, 0)

def child(job, progress):
    pid = fork(asleep_in_the_child)
    some_steps(progress)
    waiting_for_the_child(pid)

def stopping_itself():
    os.kill(os.getpid(), signal.SIGSTOP)

def stopped(job, progress):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pid = fork(stopping_itself)
    some_steps(progress, "window")
    waiting_for_the_child(pid)

def holding_the_gil():
    ctypes.PyDLL(None).sleep(60)

def gil(job, progress):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    some_steps(progress, "quality")
    holding_the_gil()

def blocked(job, progress):
    some_steps(progress)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    threading.Event().wait(60)

def compiling_for_ever():
    time.sleep(60)

def endless_compile(job, progress):
    some_steps(progress)
    progress.stage("compile")
    compiling_for_ever()

def busy_elsewhere(job, progress):
    some_steps(progress)
    with progress.steps.paused():
        time.sleep(2.5)
    progress.stage("quality")
    time.sleep(2.5)
    return Report(values={})
"""


def run(tmp_path: Path, name: str, **limits):
    """Runs a function of `RUNNER` in a fresh interpreter; returns outcome, log and seconds."""
    (tmp_path / "mine_hanging.py").write_text(RUNNER)
    write_job(tmp_path / "job", Job(uid="u", runner=f"mine_hanging:{name}", **limits))
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "sweeper.worker", str(tmp_path / "job")],
        timeout=WAIT_SECONDS,
        check=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{REPOSITORY}"},
    )
    log = (tmp_path / "job" / LOG).read_text()
    return read_outcome(tmp_path / "job"), log, time.monotonic() - began


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "stage", "words"),
    [
        ("child", "warmup", ["in asleep_in_the_child", "in waiting_for_the_child"]),
        pytest.param(
            "stopped",
            "window",
            ["which was stopped ---", "in stopping_itself", "in waiting_for_the_child"],
            marks=pytest.mark.soak,
        ),
        ("gil", "quality", ["in holding_the_gil"]),
        pytest.param("blocked", "warmup", ["--- stacks of process"], marks=pytest.mark.soak),
    ],
)
def test_a_job_without_steps_has_stalled_and_its_log_says_where(tmp_path, name, stage, words):
    outcome, log, seconds = run(tmp_path, name, stall_seconds=STALL_SECONDS)
    assert outcome.kind is FailureKind.STALLED, outcome
    assert outcome.message.startswith("no step for ")
    assert outcome.message.endswith(f"after 200 steps (in stage `{stage}`)")
    assert outcome.stage == stage
    for each in words:
        assert each in log
    # A second of steps, two to notice, two to save the stacks; the rest is a slow machine's.
    assert STALL_SECONDS < outcome.seconds < seconds < 20


def test_a_stage_has_a_time_of_its_own(tmp_path):
    outcome, log, _ = run(tmp_path, "endless_compile", stage_seconds={"compile": 0.5}, stall_seconds=0.2)
    assert (outcome.kind, outcome.stage) == (FailureKind.TIMEOUT, "compile")
    assert outcome.message == "stage `compile` took longer than its limit of 0.5 s"
    assert "in compiling_for_ever" in log


@pytest.mark.slow
def test_no_false_alarm(tmp_path):
    outcome, _, _ = run(tmp_path, "busy_elsewhere", stall_seconds=STALL_SECONDS)
    assert isinstance(outcome, Report), outcome


def test_no_core_file_is_left(tmp_path):
    job = Job(uid="u", runner="mine_hanging:gil", timeout_seconds=1.0)
    (tmp_path / "mine_hanging.py").write_text(RUNNER)
    write_job(tmp_path / "job", job)
    code = (
        "import resource, sys; from pathlib import Path\n"
        "hard = resource.getrlimit(resource.RLIMIT_CORE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))\n"
        "from sweeper.worker.keeper import keep\n"
        "keep(Path(sys.argv[1]))"
    )
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{REPOSITORY}"}
    command = [sys.executable, "-c", code, str(tmp_path / "job")]
    subprocess.run(command, timeout=WAIT_SECONDS, check=True, env=env, cwd=tmp_path)
    assert read_outcome(tmp_path / "job").kind is FailureKind.TIMEOUT
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["mine_hanging.py"]


PIPELINE = """
import os, signal, time
import torch
from sweeper.trainer.pipeline import Pipeline, Prepared, Samples

def prepare(data):
    return Prepared(arrays={"x": torch.randn(4000, 4).numpy()}, synthetic=True)

def asleep_in_a_worker():
    time.sleep(60)

def build(config, prepared):
    x = torch.from_numpy(prepared.arrays["x"])
    begin, calls = os.getpid(), 0

    def row(i):
        nonlocal calls
        calls += 1
        # In a loader worker, in the midst of an epoch, once steps have been timed.
        if calls == config.model["after"] and os.getpid() != begin:
            if config.model["how"] == "sleep":
                asleep_in_a_worker()
            os.kill(os.getpid(), signal.SIGSTOP)
        return {"x": x[i]}

    samples = Samples(tensors={"x": x}, length=len(x), row=row)
    return Pipeline(
        model=torch.nn.Linear(4, 1), train=samples, val=samples,
        loss=lambda model, batch: model(batch["x"]).square().mean(),
    )
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["sleep", "stop"])
def test_a_hung_loader_worker(launcher, tmp_path, how):
    (tmp_path / f"mine_{how}.py").write_text(PIPELINE)
    common = {
        "pipeline": f"mine_{how}",
        "import_paths": (str(tmp_path),),
        "prepared": str(tmp_path / "cache" / "p"),
    }
    write_job(tmp_path / "prepare", Job(uid="p", runner=PREPARE_RUNNER, **common))
    assert isinstance(launcher.submit(tmp_path / "prepare").result(timeout=WAIT_SECONDS), Report)
    config = TrialConfig().replace(
        {
            "loader.kind": "rows",
            "loader.num_workers": 2,
            "batch_size": 50,
            "device.cpu_threads": 1,
            "model.how": how,
            "model.after": 7025,
        }
    )
    plan = MeasurePlan(window_seconds=30, repeats=3, warmup_cap_seconds=0.3)
    job = Job(uid="t", plan=plan, config=config, stall_seconds=2.0, timeout_seconds=50, **common)
    write_job(tmp_path / "job", job)
    outcome = launcher.submit(tmp_path / "job").result(timeout=WAIT_SECONDS)
    log = (tmp_path / "job" / LOG).read_text()
    assert outcome.kind is FailureKind.STALLED, (outcome, log)
    assert "in asleep_in_a_worker" in log if how == "sleep" else "which was stopped ---" in log
    # The worker's own, and the trial's, which waits for it.
    assert "in row" in log
    assert "in stretch" in log
    # What happens to the one does not move the others.
    assert log.count("Fatal Python error: Aborted") == 3
    assert "Traceback" not in log


@pytest.mark.slow
def test_whoever_is_deaf_is_ended_all_the_same(run_fault, tmp_path):
    began = time.monotonic()
    outcome = run_fault("deaf", timeout_seconds=1.0)
    assert outcome.kind is FailureKind.TIMEOUT
    assert "in _deaf" in (tmp_path / "job" / LOG).read_text()
    assert time.monotonic() - began < 15
