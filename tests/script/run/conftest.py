"""One real server that runs scripts; it imports no torch, which none of them needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from launch.quick_node import QUICK
from services.processes import await_idle

from sweeper.core.job import Job, write_job
from sweeper.launch.local import LocalLauncher


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalLauncher]:
    home = tmp_path_factory.mktemp("home")
    launcher = QUICK(home)
    yield launcher
    await_idle(launcher, home)
    launcher.close()


@pytest.fixture
def run(launcher: LocalLauncher, tmp_path: Path) -> Callable[[Job], Any]:
    """Runs a job in the folder `trial` and returns its outcome."""

    def run(job: Job) -> Any:
        write_job(tmp_path / "trial", job)
        return launcher.submit(tmp_path / "trial").result(timeout=90)

    return run
