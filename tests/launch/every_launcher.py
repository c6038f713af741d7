"""What every launcher does."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from parts.faults import WAIT_SECONDS, fault_job

from sweeper.core.job import read_outcome
from sweeper.core.measurement import Failure, FailureKind, Measurement
from sweeper.launch.launcher import Launcher, wait_any


class EveryLauncher:
    """The tests of a launcher; a derived class has the fixture `launcher`."""

    CANCELS = True

    def test_a_job_gives_its_outcome_and_leaves_it_in_the_folder(self, launcher: Launcher, tmp_path: Path):
        folder = fault_job(tmp_path / "a")
        handle = launcher.submit(folder)
        early, late = threading.Event(), threading.Event()
        handle.add_done_callback(lambda _: early.set())
        outcome = handle.result(timeout=WAIT_SECONDS)
        assert isinstance(outcome, Measurement)
        assert read_outcome(folder) == outcome
        assert early.wait(WAIT_SECONDS)
        handle.add_done_callback(lambda _: late.set())
        assert late.is_set()
        # What has ended cannot be cancelled.
        assert (handle.done(), handle.cancel()) == (True, False)
        assert handle.result() is outcome

    def test_a_failure_is_a_value(self, launcher: Launcher, tmp_path: Path):
        outcome = launcher.submit(fault_job(tmp_path / "a", "oom")).result(timeout=WAIT_SECONDS)
        assert isinstance(outcome, Failure)
        assert (outcome.kind, outcome.stage) == (FailureKind.OOM, "build")

    def test_a_cancelled_job_is_lost(self, launcher: Launcher, tmp_path: Path):
        if not self.CANCELS:
            pytest.skip("this launcher's `submit` waits for the end of the job")
        handle = launcher.submit(fault_job(tmp_path / "a", "sleep"))
        assert handle.cancel()
        outcome = handle.result(timeout=WAIT_SECONDS)
        assert isinstance(outcome, Failure)
        assert outcome.kind is FailureKind.LOST
        assert read_outcome(tmp_path / "a") is None

    def test_jobs_up_to_the_capacity(self, launcher: Launcher, tmp_path: Path):
        jobs = {name: launcher.submit(fault_job(tmp_path / name)) for name in "abc"[: launcher.capacity]}
        wait_any(list(jobs.values()), WAIT_SECONDS)
        assert any(handle.done() for handle in jobs.values())
        for name, handle in jobs.items():
            assert handle.result(timeout=WAIT_SECONDS) == read_outcome(tmp_path / name)

    def test_closing_twice_is_safe(self, launcher: Launcher):
        launcher.close()
        launcher.close()
