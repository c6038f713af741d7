"""Whatever is killed while a script runs: nothing of the user's is changed, and nothing is left."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import ways
from folder import make_project
from runner import NOT_INHERITED, wait_until_alone
from snapshot import changes, snapshot

from sweeper.script.run.scratch import sweep

MAX_SECONDS = 6.0
SETTLED = ways.WAYS.keys() - ways.EITHER - ways.LATE - ways.TORCH - ways.LARGE


def descendants(pid: int) -> list[int]:
    """The process, and those that it and they have started, as far as they are still there."""
    pids = [pid]
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                pids += descendants(int(child))
    return pids


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, pytest.param(200, marks=pytest.mark.soak)])
def test_a_kill_at_a_random_moment_changes_nothing(count: int, monkeypatch: pytest.MonkeyPatch):
    seed = random.randrange(2**32)
    choose = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="sweeper-test-") as base:
        project = make_project(Path(base), small=True)
        temporary = Path(base) / "tmp"
        temporary.mkdir()
        look = (project.home, project.data)
        before = snapshot(*look, ignoring=project.allowed)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)}
        environment = {**kept, "HOME": str(project.home), "TMPDIR": str(temporary)}
        for number in range(count):
            names = choose.sample(sorted(SETTLED), 60)
            process = subprocess.Popen(
                [sys.executable, "-m", "sweeper", "watch", "--", "python", "train.py", "train", *names],
                cwd=project.folder,
                env={**environment, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            time.sleep(choose.uniform(0.0, MAX_SECONDS))
            tree = descendants(process.pid)
            victims = choose.choice([tree[:1], tree, tree[-1:]])
            for pid in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait(timeout=120)
            wait_until_alone(project)
            told = f"kill {number} of {victims} among {tree}, seed {seed}"
            assert changes(before, snapshot(*look, ignoring=project.allowed)) == [], told
        # Of what was killed together with the process that removes its folder, the next start removes it.
        monkeypatch.setattr(tempfile, "tempdir", str(temporary))
        sweep()
        names = [path.name for path in temporary.glob("sweeper-*")]
        assert [name for name in names if not name.endswith(".log")] == []
