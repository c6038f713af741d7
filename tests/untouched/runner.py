"""How the project's script is run: plainly, or guarded by the product; and what it said of its ways."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from folder import Project

from sweeper.core.script import Script
from sweeper.script.inside import SITE
from sweeper.script.run.sandbox import make_sandbox

Runner = Callable[[Sequence[str], Project, Path], str]
"""Runs a command in a project, with a scratch folder outside of it, and returns what it printed."""

LIMIT_SECONDS, COMMAND_LIMIT_SECONDS = 120.0, 400.0
ALONE_SECONDS = 10.0
NOT_INHERITED = ("GIT_", "XDG_", "WAYS_", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")


def command_of(*names: str) -> tuple[str, ...]:
    """The command line of the project's script that goes some ways."""
    return (sys.executable, "train.py", *names)


def environment_of(project: Project, scratch: Path) -> dict[str, str]:
    """Of a run: HOME is the project's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)}
    return {**kept, "HOME": str(project.home), "TMPDIR": str(scratch)}


def run_plainly(command: Sequence[str], project: Project, scratch: Path) -> str:
    """With nothing in between: everything is written."""
    result = subprocess.run(
        command,
        cwd=project.folder,
        # Nothing holds up who races; a busy machine may.
        env={**environment_of(project, scratch), "RACE_SECONDS": "20"},
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
        timeout=LIMIT_SECONDS,
    )
    wait_until_alone(project)
    return result.stdout


# ------------------------------------------------------------------------------------------------------
# WHAT KNOWS THE PRODUCT.


def run_in_sandbox(command: Sequence[str], project: Project, scratch: Path) -> str:
    """In the product's mirror, under its guard.

    It is to run `command` for `project.folder` with `environment_of(project, scratch)`, to keep what it
    makes below `scratch`, to call `wait_until_alone(project)`, and to return what was printed.
    """
    sandbox = make_sandbox(Script(command=(), folder=str(project.folder)), {}, scratch / "work", scratch)
    environment = {**environment_of(project, scratch), "PYTHONPATH": SITE}
    environment.update(sandbox.environment(environment))
    try:
        process = sandbox.start(
            sandbox.translate(command), environment, stdout=subprocess.PIPE, text=True, errors="replace"
        )
        printed, _ = process.communicate(timeout=LIMIT_SECONDS)
        wait_until_alone(project)
    finally:
        sandbox.close()
        sandbox.remove()
    return str(printed)


def sweeper(
    folder: Path, state: Path, *words: str, home: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs the command line as the user does, in their folder.

    Args:
        state: Folder of its sweeps.
        home: The user's home folder; this process's by default.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)}
    return subprocess.run(
        [sys.executable, "-m", "sweeper", *words],
        cwd=folder,
        env={
            **kept,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(home or Path.home()),
            "SWEEPER_HOME": str(state),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=COMMAND_LIMIT_SECONDS,
    )


# ------------------------------------------------------------------------------------------------------

MODES: Mapping[str, Runner] = {"sandbox": run_in_sandbox}
"""What test_ways.py judges."""


def outcomes(printed: str) -> dict[str, str]:
    """Returns what was said of each way: `wrote`, or `refused: ...`, or `skipped: ...`."""
    lines = [line.removeprefix("way ") for line in printed.splitlines() if line.startswith("way ")]
    return {name: outcome for name, _, outcome in (line.partition(": ") for line in lines)}


def wait_until_alone(project: Project, but: Collection[int] = ()) -> None:
    """Waits for processes that outlive a run, which is known by its HOME; not for some, by their ids.

    Raises:
        TimeoutError: One does not end.
    """
    mark = f"HOME={project.home}".encode()
    deadline = time.monotonic() + ALONE_SECONDS
    while left := [pid for pid in _pids() if pid not in but and mark in _environment(pid)]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {left} do not end")
        time.sleep(0.02)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _environment(pid: int) -> list[bytes]:
    try:
        return Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
    except OSError:
        return []
