"""A trial of several ranks: it ends as soon as one of them does, and leaves none behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from parts.faults import WAIT_SECONDS

from sweeper.core.config import TrialConfig
from sweeper.core.job import LOG, Job, MeasurePlan, write_job
from sweeper.core.measurement import FailureKind, Measurement
from sweeper.core.progress import SilentProgress
from sweeper.system.process import children, tree
from sweeper.trainer import prepare

PIPELINE = "parts.pipelines"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("cache") / "prepared")
    prepare.run(Job(uid="d", pipeline=PIPELINE, prepared=folder), SilentProgress())
    return folder


def submit(launcher, tmp_path: Path, prepared: str, plan: MeasurePlan, **options: object):
    config = TrialConfig().replace({"device.count": 3, "device.cpu_threads": 1, **options})
    write_job(tmp_path / "job", Job(uid="t", pipeline=PIPELINE, prepared=prepared, config=config, plan=plan))
    return launcher.submit(tmp_path / "job")


def ranks(launcher) -> list[int]:
    """Waits until the trial has its followers; returns them."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        for pid in tree(launcher._process.pid):
            below = list(children(pid))
            # The server has a keeper to spare.
            if len(below) == 2 and pid != launcher.pid:
                return below
        time.sleep(0.01)
    raise AssertionError("no trial with two followers")


@pytest.mark.slow
def test_a_whole_trial_of_three_ranks(launcher, tmp_path, prepared):
    plan = MeasurePlan(window_seconds=0.2, repeats=1, warmup_cap_seconds=0.1, quality_samples=600)
    # 2,000 samples are not a multiple of 3 x 64.
    handle = submit(launcher, tmp_path, prepared, plan, **{"loader.drop_last": False})
    outcome = handle.result(timeout=WAIT_SECONDS)
    assert isinstance(outcome, Measurement), outcome
    assert outcome.effective == {"loader.drop_last": "true: devices that train together take whole batches"}
    (window,) = outcome.windows
    assert window.samples == 3 * 64 * window.steps
    assert outcome.quality is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "kind", "message", "seconds"),
    [
        (signal.SIGKILL, FailureKind.LOST, "the trial was killed from outside (SIGKILL)", 0.0),
        (signal.SIGBUS, FailureKind.SHM, "the trial crashed with SIGBUS", 1.0),
    ],
    ids=["early", "training"],
)
def test_a_ranks_death_is_the_trials(launcher, tmp_path, prepared, number, kind, message, seconds):
    handle = submit(launcher, tmp_path, prepared, MeasurePlan(window_seconds=60, repeats=1))
    followers = ranks(launcher)
    time.sleep(seconds)
    os.kill(followers[1], number)
    began = time.monotonic()
    outcome = handle.result(timeout=WAIT_SECONDS)
    assert time.monotonic() - began < 15
    assert outcome.kind is kind
    assert outcome.message.startswith(message)
    assert "rank 2 of 3 ended early by SIG" in (tmp_path / "job" / LOG).read_text()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in followers)


def test_an_error_of_all_ranks_is_reported_once(launcher, tmp_path, prepared):
    options = {"model.fault": "oom", "model.fault_at": 3}
    outcome = submit(launcher, tmp_path, prepared, MeasurePlan(), **options).result(timeout=WAIT_SECONDS)
    assert outcome.kind is FailureKind.OOM
    assert outcome.message.startswith("RuntimeError: CUDA out of memory")
