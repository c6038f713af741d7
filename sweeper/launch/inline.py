"""Runs jobs one by one in this process, for debugging."""

from __future__ import annotations

import os
from concurrent.futures import Future
from pathlib import Path

from sweeper.core.job import read_job, write_outcome
from sweeper.core.measurement import Outcome, Report
from sweeper.core.progress import SilentProgress
from sweeper.launch.launcher import Launcher, LaunchRequest, outcome_or_lost
from sweeper.system.environment import secrets
from sweeper.worker.trial import run


class InlineLauncher(Launcher):
    """Runs jobs without isolation, timeout or telemetry, so that breakpoints work."""

    capacity = 1

    def submit(self, folder: Path) -> Future[Outcome | Report]:
        """Runs the job immediately and returns a finished future."""
        write_outcome(folder, run(read_job(folder), SilentProgress()), secrets(os.environ))
        future: Future[Outcome | Report] = Future()
        future.set_result(outcome_or_lost(folder))
        return future

    def close(self) -> None:
        """Does nothing."""


def launch(request: LaunchRequest) -> InlineLauncher:
    """Returns the launcher of `execution.launcher: inline`."""
    return InlineLauncher()
