"""Provides the conformance suite of launchers. Derive a test class and give it a `launcher` fixture.

class TestErrand(LauncherConformance):
    @pytest.fixture
    def launcher(self, tmp_path):
        return launcher_of("errand", tmp_path)
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from sweeper.core.config import TrialConfig
from sweeper.core.job import Job, read_outcome, write_job
from sweeper.core.measurement import Failure, FailureKind, Measurement
from sweeper.execution.launcher import Launcher, LaunchRequest, make_launcher, wait_any
from sweeper.execution.parcel import Parcel
from sweeper.spec import SweepSpec
from sweeper.testing import faults

WAIT_SECONDS = 60


def fault_job(folder: Path, fault: str = "", **changes: object) -> Path:
    """Writes a job with the fault of that name, and returns its folder."""
    config = TrialConfig(model={"fault": fault})
    write_job(folder, Job(uid=folder.name, runner=faults.RUNNER, config=config, **changes))  # type: ignore[arg-type]
    return folder


def launcher_of(name: str, folder: Path, **execution: object) -> Launcher:
    """Returns the launcher `name` as a sweep in `folder` gets it: built in, or found by its entry point.

    Args:
        execution: Settings of the section `execution`, such as `address`. Jobs use the CPU by default.

    Raises:
        UserError: There is no such launcher, or it does not take these settings.
    """
    tree: dict[str, Any] = {
        "name": "conformance",
        "pipeline": "sweeper.testing.pipelines",
        "space": {},
        "baseline": {},
        "execution": {"launcher": name, "gpus": 0, **execution},
    }
    request = LaunchRequest(
        folder=folder,
        execution=SweepSpec.from_dict(tree).execution,
        gpus=0,
        parcel=lambda: Parcel(job=Job(uid=""), sweep=tree["name"], turn=0),
    )
    return make_launcher(request)


class LauncherConformance:
    """Override the fixture `launcher`; pytest collects the rest."""

    @pytest.fixture
    def cancels(self) -> bool:
        """Returns whether a running job can be ended; override it if `submit` waits for the job's end."""
        return True

    def test_a_job_gives_its_outcome_and_leaves_it_in_the_folder(
        self, launcher: Launcher, tmp_path: Path
    ) -> None:
        """`result` returns what the folder holds."""
        folder = fault_job(tmp_path / "a")
        handle = launcher.submit(folder)
        outcome = handle.result(timeout=WAIT_SECONDS)
        assert isinstance(outcome, Measurement)
        assert handle.done()
        assert read_outcome(folder) == outcome

    def test_a_failure_is_a_value(self, launcher: Launcher, tmp_path: Path) -> None:
        """An exception in the job reaches the caller as a Failure, never as an exception."""
        outcome = launcher.submit(fault_job(tmp_path / "a", "oom")).result(timeout=WAIT_SECONDS)
        assert isinstance(outcome, Failure)
        assert outcome.kind is FailureKind.OOM
        assert outcome.stage == "build"

    def test_callbacks_are_called_before_and_after_the_end(self, launcher: Launcher, tmp_path: Path) -> None:
        """A callback added late is called immediately."""
        handle = launcher.submit(fault_job(tmp_path / "a"))
        early, late = threading.Event(), threading.Event()
        handle.add_done_callback(lambda _: early.set())
        assert early.wait(WAIT_SECONDS)
        handle.add_done_callback(lambda _: late.set())
        assert late.is_set()

    def test_what_has_ended_cannot_be_cancelled(self, launcher: Launcher, tmp_path: Path) -> None:
        """`cancel` returns False, and the outcome stays."""
        handle = launcher.submit(fault_job(tmp_path / "a"))
        outcome = handle.result(timeout=WAIT_SECONDS)
        assert handle.cancel() is False
        assert handle.result() is outcome

    def test_a_cancelled_job_is_lost(self, launcher: Launcher, tmp_path: Path, cancels: bool) -> None:
        """`cancel` ends a job early, and leaves no outcome."""
        if not cancels:
            pytest.skip("this launcher's `submit` waits for the end of the job")
        handle = launcher.submit(fault_job(tmp_path / "a", "sleep"))
        assert handle.cancel()
        outcome = handle.result(timeout=WAIT_SECONDS)
        assert isinstance(outcome, Failure)
        assert outcome.kind is FailureKind.LOST
        assert read_outcome(tmp_path / "a") is None

    def test_jobs_up_to_the_capacity(self, launcher: Launcher, tmp_path: Path) -> None:
        """Each handle returns its job's outcome, in whatever order the jobs end."""
        assert launcher.capacity >= 1
        jobs = {name: launcher.submit(fault_job(tmp_path / name)) for name in "abc"[: launcher.capacity]}
        wait_any(list(jobs.values()), WAIT_SECONDS)
        assert any(handle.done() for handle in jobs.values())
        for name, handle in jobs.items():
            assert handle.result(timeout=WAIT_SECONDS) == read_outcome(tmp_path / name)

    def test_closing_twice_is_safe(self, launcher: Launcher) -> None:
        """`close` may be called from more than one clean-up."""
        launcher.close()
        launcher.close()
