"""A real supervisor with real workers, killed at random moments; then the same command once more."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from sweeper.execution.local import leftovers
from sweeper.sweep.journal import Journal

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
KILLS = 8
TRIALS = 12
SEED = 7

SCRIPT = """
import dataclasses, sys
from pathlib import Path
from sweeper.execution.local import LocalLauncher
from sweeper.core.job import TRIAL_RUNNER, read_job, write_job
from sweeper.spec import load
from sweeper.sweep.observer import Quiet
from sweeper.sweep.run import run_sweep
from sweeper.tracking import NullTracker


class NoOps(LocalLauncher):
    '''Real processes that measure nothing.'''

    def submit(self, folder):
        job = read_job(folder)
        if job.runner == TRIAL_RUNNER:
            write_job(folder, dataclasses.replace(job, runner="slow:run"))
        return super().submit(folder)


run_sweep(Path("home"), load(Path("chaos.yaml")), NullTracker(), Quiet(), launch=NoOps)
"""
# Long enough for a kill to meet a trial at work.
SLOW = """
import time
from sweeper.testing import noop

def run(job, progress):
    time.sleep(0.05)
    return noop.run(job, progress)

def prepare(data):
    from sweeper.trainer.pipeline import Prepared
    return Prepared(arrays={}, meta={})

def build(config, prepared):
    raise NotImplementedError
"""
YAML = f"""
name: chaos
pipeline: slow
space:
  batch_size: {{type: int, low: 64, high: 4096, log: true}}
  precision.amp: {{type: categorical, choices: [fp32, bf16]}}
baseline: {{batch_size: 64}}
search: {{trials: {TRIALS}, minutes: null}}
confirm: {{top: 1, rounds: 2}}
"""


def start() -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), str(REPOSITORY)])}
    return subprocess.Popen([sys.executable, "script.py"], env=environment)


def test_killed_again_and_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text(SCRIPT)
    Path("slow.py").write_text(SLOW)
    Path("chaos.yaml").write_text(YAML)
    rng = random.Random(SEED)
    journal = Journal(Path("home/sweeps/chaos"))
    kept: dict[Path, bytes] = {}
    killed_at = []
    for _ in range(KILLS):
        supervisor = start()
        before = len(kept)
        # Until some trials more have ended than before, and a random moment beyond.
        wanted, deadline = before + rng.randrange(0, 2), time.monotonic() + 60
        while len(list(journal.folder.glob("trials/*/outcome.json"))) < wanted + 1:
            if supervisor.poll() is not None or time.monotonic() > deadline:
                break
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.1))
        supervisor.kill()
        supervisor.wait()
        now = {path: path.read_bytes() for path in journal.folder.glob("trials/*/outcome.json")}
        assert {path: now.get(path) for path in kept} == kept
        kept = now
        killed_at.append(len(now))
    assert killed_at[0] < killed_at[-1]
    last = start()
    assert last.wait(timeout=60) == 0
    entries = list(journal.trials())
    assert [entry.number for entry in entries] == list(range(TRIALS + 1))
    assert all(entry.outcome is not None for entry in entries)
    keys = [entry.job.config.key() for entry in entries]
    assert len(set(keys)) == len(keys)
    assert {path: path.read_bytes() for path in kept} == kept
    assert leftovers(journal.folder) == []
    assert _running(journal.study) == []


def _running(path: Path) -> list[int]:
    storage = JournalStorage(JournalFileBackend(str(path)))
    study = optuna.load_study(study_name="chaos", storage=storage)
    numbers = [t.user_attrs["sweeper.number"] for t in study.trials if "sweeper.number" in t.user_attrs]
    assert len(set(numbers)) == len(numbers) >= TRIALS
    return [t.number for t in study.trials if t.state == TrialState.RUNNING]
