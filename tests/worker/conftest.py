"""A real server, whose keepers run the jobs of a module; by fork and by exec.

A module whose jobs need no torch says so: `LAUNCHER = QUICK`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import parts
import pytest
from parts.faults import WAIT_SECONDS, fault_job
from services.processes import await_idle

from sweeper.launch.local import LocalLauncher


@pytest.fixture(autouse=True, scope="package")
def parts_in_trials() -> Iterator[None]:
    """Has the trials of this folder's servers find the runners in `parts`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", parts.FOLDER, prepend=os.pathsep)
        yield


@pytest.fixture(scope="module", params=["fork", pytest.param("exec", marks=pytest.mark.soak)])
def launcher(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalLauncher]:
    home = tmp_path_factory.mktemp("home")
    make = getattr(request.module, "LAUNCHER", LocalLauncher)
    launcher = make(home, capacity=2, isolation=request.param)
    yield launcher
    await_idle(launcher, home)
    launcher.close()


@pytest.fixture
def run_fault(launcher: LocalLauncher, tmp_path: Path) -> Callable[..., Any]:
    """Runs one job that does what `fault` says, and returns its outcome."""

    def run(fault: str, **changes: object) -> Any:
        folder = fault_job(tmp_path / "job", fault, **changes)
        return launcher.submit(folder).result(timeout=WAIT_SECONDS)

    return run
