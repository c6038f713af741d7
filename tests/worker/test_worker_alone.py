"""A worker without a server: `python -m sweeper.worker DIR`, as other launchers start it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from parts.faults import fault_job

from sweeper.core.job import read_outcome
from sweeper.core.measurement import FailureKind, Measurement
from sweeper.launch.local import SWEEP_MARK, leftovers
from sweeper.system.process import tree
from sweeper.worker.keeper import _Keeper


@pytest.fixture
def start(tmp_path):
    """Starts a worker on a job that does what `fault` says; its processes carry the mark of `tmp_path`."""
    started = []

    def run(fault: str, **changes) -> subprocess.Popen:
        folder = fault_job(tmp_path / "job", fault, **changes)
        env = {**os.environ, SWEEP_MARK: str(tmp_path)}
        started.append(subprocess.Popen([sys.executable, "-m", "sweeper.worker", str(folder)], env=env))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()


def wait_for(holds, seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.01)
    return False


def test_daemons_are_gone_when_it_ends(start, tmp_path):
    assert start("children").wait(timeout=60) == 0
    assert isinstance(read_outcome(tmp_path / "job"), Measurement)
    assert leftovers(tmp_path) == []


def test_told_to_end_it_ends_its_tree_and_leaves_no_outcome(start, tmp_path):
    worker = start("children, sleep")
    assert wait_for(lambda: len(list(tree(worker.pid))) == 4)
    worker.terminate()
    assert worker.wait(timeout=60) == 128 + 15
    assert leftovers(tmp_path) == []
    assert read_outcome(tmp_path / "job") is None


def ignores_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition("SigIgn:")[2].split()[0], 16) >> (signal.SIGTERM - 1) & 1)


def test_killed_it_takes_the_trial_along(start, tmp_path):
    # Well into its work, where it writes no more reports: a broken pipe would end it by itself.
    worker = start("deaf")
    assert wait_for(lambda: any(map(ignores_sigterm, list(tree(worker.pid))[1:])))
    worker.kill()
    worker.wait()
    assert wait_for(lambda: not leftovers(tmp_path))


def test_a_killed_trial_is_lost(start, tmp_path):
    worker = start("sleep")
    assert wait_for(lambda: len(list(tree(worker.pid))) == 2)
    os.kill(list(tree(worker.pid))[1], 9)
    assert worker.wait(timeout=60) == 0
    assert read_outcome(tmp_path / "job").kind is FailureKind.LOST


def test_a_pipe_that_never_runs_dry_does_not_hold_the_keeper():
    # /dev/zero is a writer that is always faster.
    taken = []
    descriptor = os.open("/dev/zero", os.O_RDONLY)
    try:
        assert _Keeper._drain(descriptor, lambda data: taken.append(len(data)))
    finally:
        os.close(descriptor)
    assert 0 < sum(taken) <= 16 * 1024 * 1024
