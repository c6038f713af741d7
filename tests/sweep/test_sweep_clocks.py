"""Wall clocks that jump, and a supervisor that slept while another took its sweep."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import parts
import pytest
from parts.noop import synthetic
from parts.replay import ReplayLauncher
from replays import Bench, spec_of, surface

from sweeper.core.job import Job, read_job, read_outcome, seconds_of, write_outcome
from sweeper.core.measurement import Failure, FailureKind
from sweeper.errors import SweepConflictError
from sweeper.launch.local import leftovers
from sweeper.sweep.folder import lock as locking
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.folder.lock import EPOCH, SweepLock
from sweeper.sweep.job_runner import JobRunner, Slot

REPOSITORY = Path(__file__).parents[2]
DAY = 86_400.0
JOB = Job(uid="x", timeout_seconds=600.0, created_at=1000.0)


@pytest.mark.parametrize(
    ("job", "outcome", "seconds"),
    [
        # By the monotonic clock, whatever the wall says.
        (JOB, dataclasses.replace(synthetic(1.0), seconds=30.0, finished_at=1000.0 + DAY), 30.0),
        (JOB, dataclasses.replace(synthetic(1.0), seconds=30.0, finished_at=1000.0 - DAY), 30.0),
        (JOB, Failure(kind=FailureKind.OOM, message="", seconds=12.0, finished_at=1000.0 + DAY), 12.0),
        # Stamps alone, of an older version.
        (JOB, dataclasses.replace(synthetic(1.0), finished_at=1020.0), 20.0),
        (JOB, dataclasses.replace(synthetic(1.0), finished_at=1000.0 + DAY), 600.0),
        (JOB, dataclasses.replace(synthetic(1.0), finished_at=1000.0 - DAY), 0.0),
        # Several attempts: the last one's own time is not all.
        (
            dataclasses.replace(JOB, attempt=1),
            dataclasses.replace(synthetic(1.0), seconds=30.0, finished_at=1100.0),
            100.0,
        ),
        (
            dataclasses.replace(JOB, attempt=1),
            dataclasses.replace(synthetic(1.0), seconds=30.0, finished_at=1000.0 - DAY),
            30.0,
        ),
    ],
)
def test_a_clock_that_was_set_neither_takes_time_nor_gives_any(job, outcome, seconds):
    assert seconds_of(job, outcome) == seconds


@pytest.mark.parametrize("jump", [DAY, -DAY])
def test_a_jump_between_two_lives_leaves_the_budget(bench: Bench, jump: float):
    spec = spec_of(search={"trials": 8, "minutes": 30}, execution={"trial_timeout_minutes": 1})
    bench.run(spec)
    folder = bench.home / "sweeps" / "toy"
    (folder / "result.json").unlink()
    number = 4
    trial = folder / "trials" / f"{number:04d}"
    outcome = read_outcome(trial)
    assert outcome is not None
    write_outcome(trial, dataclasses.replace(outcome, finished_at=read_job(trial).created_at + jump))
    for left in (5, 6, 7, 8, 9):
        for path in sorted((folder / "trials" / f"{left:04d}").iterdir()):
            path.unlink()
        (folder / "trials" / f"{left:04d}").rmdir()
    bench.run(spec)
    # A day would have been the whole of half an hour; a day back would have been a gift.
    assert len(bench.jobs("search")) == 5


@pytest.mark.parametrize("jump", [DAY, -DAY])
def test_a_jump_amid_a_sweep_changes_nothing(bench: Bench, monkeypatch, jump: float):
    wall = time.time
    count = 0

    def jumping(config):
        nonlocal count
        count += 1
        if count == 4:
            monkeypatch.setattr(time, "time", lambda: wall() + jump)
        return surface(config)

    bench.run(spec_of(search={"minutes": 30}), jumping)
    assert len(bench.jobs("search")) == 8
    assert bench.jobs("race")
    assert Journal(bench.home / "sweeps" / "toy").result() is not None


def test_the_epoch_is_looked_at_once_a_second(tmp_path: Path, monkeypatch):
    lock = SweepLock(tmp_path)
    now = time.monotonic()
    (tmp_path / EPOCH).write_text("99\n")
    monkeypatch.setattr(locking.time, "monotonic", lambda: now + 0.5)
    lock.check_now_and_then()
    monkeypatch.setattr(locking.time, "monotonic", lambda: now + 3600.0)
    with pytest.raises(SweepConflictError, match="taken over"):
        lock.check_now_and_then()
    lock.release()


SCRIPT = """
import sys
from pathlib import Path
from sweeper.errors import SweeperError
from sweeper.core.job import TRIAL_RUNNER, read_job, write_job
from sweeper.launch.local import LocalLauncher
from sweeper.schema import load
from sweeper.sweep.observer import QuietObserver
from sweeper.sweep.run import run_sweep
from sweeper.tracking import NullTracker
import dataclasses


class Sleepers(LocalLauncher):
    def submit(self, folder):
        job = read_job(folder)
        if job.runner == TRIAL_RUNNER:
            write_job(folder, dataclasses.replace(job, runner="sleeping:run"))
        return super().submit(folder)


try:
    run_sweep(Path("home"), load(Path("space.yaml")), NullTracker(), QuietObserver(), launch=Sleepers)
except SweeperError as error:
    print(error, flush=True)
    sys.exit(error.exit_code)
"""
SLEEPING = """
import time
from parts import noop

def run(job, progress):
    if job.stage == "search":
        time.sleep(600)
    return noop.run(job, progress)

def prepare(data):
    from sweeper.trainer.pipeline import Prepared
    return Prepared(arrays={}, meta={})

def build(config, prepared):
    raise NotImplementedError
"""
SPACE = """
name: slept
pipeline: sleeping
space: {batch_size: {type: int, low: 64, high: 4096, log: true}}
baseline: {batch_size: 64}
search: {trials: 3, minutes: null}
confirm: {top: 1, rounds: 2}
measure: {quality_samples: 0, trace: false}
execution: {gpus: 0}
"""


@pytest.mark.slow
def test_woken_after_another_took_its_sweep_it_ends_its_trials_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in (("script.py", SCRIPT), ("sleeping.py", SLEEPING), ("space.yaml", SPACE)):
        Path(name).write_text(text)
    path = os.pathsep.join([str(tmp_path), str(REPOSITORY), parts.FOLDER])
    ghost = subprocess.Popen(
        [sys.executable, "script.py"],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    folder = tmp_path / "home/sweeps/slept"
    deadline = time.monotonic() + 90
    while not (folder / "trials/0001/config.json").exists():
        assert ghost.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)
    ghost.send_signal(signal.SIGSTOP)
    # On a file system whose locks do not reach other hosts, this is all that a second one leaves.
    (folder / EPOCH).write_text("99\n")
    before = {each: each.stat().st_mtime_ns for each in folder.rglob("*") if each.is_file()}
    time.sleep(1.2)
    ghost.send_signal(signal.SIGCONT)
    said, _ = ghost.communicate(timeout=30)
    assert ghost.returncode == 3, said
    assert "taken over by another process" in said
    assert leftovers(folder) == []
    after = {each: each.stat().st_mtime_ns for each in folder.rglob("*") if each.is_file()}
    changed = {each.name for each in before.keys() | after.keys() if before.get(each) != after.get(each)}
    # What a trial itself was writing when it was ended is no word of the supervisor's, nor is what libraries
    # in the server of the trials say when it ends: triton's count there what was not freed.
    assert changed <= {"worker.log", "telemetry.log", "server.log"}, changed
    assert "Traceback" not in (folder / "server.log").read_text()


def test_a_job_of_a_sweep_that_was_taken_is_not_begun(tmp_path: Path):
    def taken() -> None:
        raise SweepConflictError("taken over")

    launcher = ReplayLauncher(surface)
    runner = JobRunner(launcher, [Slot("cpu")], lambda: None, check=taken)
    with pytest.raises(SweepConflictError):
        runner.start(1, tmp_path / "0001", JOB)
    assert not (tmp_path / "0001").exists()
    assert launcher.jobs == []
    launcher.close()
