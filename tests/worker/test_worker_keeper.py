"""The keeper: every way in which a trial can end, with real processes that are really killed."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from parts.faults import WAIT_SECONDS

from sweeper.core.config import TrialConfig
from sweeper.core.job import LOG, PREPARE_RUNNER, TELEMETRY_LOG, Job, MeasurePlan, read_outcome, write_job
from sweeper.core.measurement import FailureKind, Measurement, Report
from sweeper.worker.log import HEAD_BYTES, TAIL_BYTES


def test_a_result_comes_back_whole(run_fault, tmp_path):
    outcome = run_fault("")
    assert isinstance(outcome, Measurement)
    assert outcome.throughput == 64_000.0
    assert read_outcome(tmp_path / "job") == outcome


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        ("raise", "user_error", "ValueError: a mistake in the model"),
        ("oom", "oom", "RuntimeError: CUDA out of memory"),
        ("exit", "no_result", "the trial exited with status 0 without a result"),
        ("exit 3", "crash", "the trial exited with status 3 without a result"),
        ("kill", "lost", "the trial was killed from outside (SIGKILL)"),
    ],
)
def test_a_failure_has_kind_message_stage_and_log(run_fault, tmp_path, fault, kind, message):
    outcome = run_fault(fault)
    assert outcome.kind == kind
    assert outcome.message.startswith(message)
    assert outcome.stage == "build"
    assert outcome.log == LOG
    assert outcome.seconds > 0
    assert outcome.finished_at > 0
    if fault in ("raise", "oom"):
        assert "Traceback" in (tmp_path / "job" / LOG).read_text()
        assert message in outcome.detail


# Of one that is deaf, test_worker_stalled knows as well.
@pytest.mark.parametrize(
    "fault", ["sleep", pytest.param("deaf", marks=pytest.mark.slow), "children, sleep", "flood"]
)
def test_time_is_up_for_whoever_does_not_end(run_fault, tmp_path, fault):
    outcome = run_fault(fault, timeout_seconds=1.5)
    assert outcome.kind is FailureKind.TIMEOUT
    assert outcome.message == "no result within 1.5 s (in stage `build`)"
    assert (tmp_path / "job" / LOG).stat().st_size < HEAD_BYTES + TAIL_BYTES + 128 * 1024


def test_daemons_are_gone_before_the_outcome_is_there(run_fault):
    # The fixture of the module looks at the processes that are left.
    assert isinstance(run_fault("children"), Measurement)


def test_much_and_odd_output_is_bounded_escaped_and_never_a_result(run_fault, tmp_path):
    outcome = run_fault("print")
    assert isinstance(outcome, Measurement)
    log = (tmp_path / "job" / LOG).read_bytes()
    assert log.startswith(b'{"result": {"type": "report"')
    assert log.endswith(b"\xff\xfe broken \x1b[31mred\x1b[0m\x07\nthe last line\n")
    assert b"bytes left out" in log
    assert len(log) < HEAD_BYTES + TAIL_BYTES + 128 * 1024


MINE = '''
def prepare(data):
    """A mistake of the user's, on line 5."""
    print("\\x1b[31mbefore\\x1b[0m")
    return {}["key"]

def build(config, prepared): ...
'''


@pytest.mark.parametrize("name", ["sweeper", "elsewhere"])
def test_an_error_in_the_users_code_is_one_line_with_its_place(launcher, tmp_path, name):
    # Also where the user's code is in a clone of this project, that is, below a folder `sweeper`.
    source = tmp_path / name
    source.mkdir()
    (source / f"mine_{name}.py").write_text(MINE)
    job = Job(
        uid="u",
        runner=PREPARE_RUNNER,
        pipeline=f"mine_{name}",
        import_paths=(str(source),),
        prepared=str(tmp_path / "cache" / "p"),
    )
    write_job(tmp_path / "job", job)
    outcome = launcher.submit(tmp_path / "job").result(timeout=WAIT_SECONDS)
    assert outcome.kind is FailureKind.USER_ERROR
    assert outcome.message.startswith("KeyError: 'key' (")
    assert outcome.message.endswith(f"mine_{name}.py:5)")
    assert outcome.stage == "prepare"
    assert "\\x1b[31mbefore\\x1b[0m" in outcome.detail
    assert 'return {}["key"]' in outcome.detail


RUNNER = """
import os, resource, sys
from sweeper.core.measurement import Report

def look(job, progress):
    found = {name: name in sys.modules for name in ("torch", "optuna", "mlflow", "pydantic", "pandas")}
    import sweeper.trainer.measure, sweeper.trainer.quality
    late = sorted({"optuna", "mlflow", "pydantic", "yaml", "pandas", "typer"} & set(sys.modules))
    return Report(values={
        "before": found, "late": late, "cpus": sorted(os.sched_getaffinity(0)), "env": os.environ.get("MINE"),
        "stdin": os.read(0, 1).decode(),
        "session": os.getsid(0) == os.getpid(), "open": len(os.listdir("/proc/self/fd")),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
    })

def not_a_result(job, progress):
    return 1
"""


def test_a_runner_that_is_not_there_is_a_crash_with_its_reason(launcher, tmp_path):
    write_job(tmp_path / "job", Job(uid="u", runner="sweeper.nowhere:run"))
    outcome = launcher.submit(tmp_path / "job").result(timeout=WAIT_SECONDS)
    assert outcome.kind is FailureKind.CRASH
    assert outcome.message == "ModuleNotFoundError: No module named 'sweeper.nowhere'"


def test_cores_that_do_not_exist_are_said(run_fault):
    outcome = run_fault("", cpus=(100_000,))
    assert outcome.kind is FailureKind.CRASH
    assert "OSError: [Errno 22]" in outcome.detail


def worker(*arguments: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sweeper.worker", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=cwd, env={**os.environ, **env}
    )


def test_the_trial_is_clean_and_stays_where_it_was_put(tmp_path):
    (tmp_path / "mine_runner.py").write_text(RUNNER)
    core = min(os.sched_getaffinity(0))
    job = Job(uid="u", runner="mine_runner:look", cpus=(core,), env={"MINE": "yes"})
    write_job(tmp_path / "job", job)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] // 2, before[1]))
    try:
        done = worker(str(tmp_path / "job"), PYTHONPATH=f"{tmp_path}:{Path(__file__).parents[2]}")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    outcome = read_outcome(tmp_path / "job")
    assert isinstance(outcome, Report), outcome
    values = outcome.values
    assert not any(values["before"].values())
    assert values["late"] == []
    assert (values["cpus"], values["env"], values["stdin"], values["session"]) == ([core], "yes", "", True)
    # Standard streams, the report pipe, and the listing itself.
    assert values["open"] <= 6
    # Loader workers pass batches as descriptors.
    assert values["files"] == [before[1], before[1]]


def test_what_is_no_result_is_a_crash(tmp_path):
    (tmp_path / "mine_runner.py").write_text(RUNNER)
    write_job(tmp_path / "job", Job(uid="u", runner="mine_runner:not_a_result"))
    worker(str(tmp_path / "job"), PYTHONPATH=f"{tmp_path}:{Path(__file__).parents[2]}")
    assert read_outcome(tmp_path / "job").kind is FailureKind.CRASH


def test_probe_prints_what_the_device_can_do():
    done = worker("--probe", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)["values"]
    assert values["devices"][0]["kind"] == "cpu"
    assert values["usable_cpus"] >= 1


def test_usage(tmp_path):
    assert worker().returncode == 2
    assert "usage" in worker("--help").stderr


def test_a_real_trial_has_telemetry_of_its_windows(launcher, tmp_path):
    import numpy as np

    prepared = str(tmp_path / "cache" / "p")
    common = {"pipeline": "parts.pipelines", "prepared": prepared}
    write_job(tmp_path / "prepare", Job(uid="p", runner=PREPARE_RUNNER, **common))
    assert isinstance(launcher.submit(tmp_path / "prepare").result(timeout=WAIT_SECONDS), Report)
    plan = MeasurePlan(window_seconds=0.4, repeats=2, warmup_cap_seconds=0.2, quality_samples=500)
    config = TrialConfig().replace({"device.cpu_threads": 1})
    write_job(tmp_path / "job", Job(uid="t", plan=plan, config=config, **common))
    outcome = launcher.submit(tmp_path / "job").result(timeout=WAIT_SECONDS)
    assert isinstance(outcome, Measurement), outcome
    assert outcome.quality is not None
    assert outcome.telemetry["tree_mem_gib"].mean > 0.05
    assert {"cpu_util_pct", "host_mem_used_gib", "host_read_ms"} <= set(outcome.telemetry)
    assert outcome.diagnosis is not None
    assert outcome.diagnosis.device_samples_s > 0
    assert not any(name.startswith("gpu_") for name in outcome.telemetry)
    moments = np.load(tmp_path / "job" / "series" / "time_s.npy")
    memory = np.load(tmp_path / "job" / "series" / "tree_mem_gib.npy")
    assert len(moments) == len(memory) >= 2
    first, last = outcome.windows[0], outcome.windows[-1]
    assert ((moments >= first.start_s) & (moments <= last.start_s + last.seconds)).any()
    seconds = (tmp_path / "job" / TELEMETRY_LOG).read_text().splitlines()
    assert 1 <= len(seconds) <= 2 + moments[-1] - moments[0]
    assert all("CPU" in line for line in seconds[1:])
