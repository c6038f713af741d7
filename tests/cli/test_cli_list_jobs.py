"""What `sweeper list` says of jobs: while their supervisor runs, and once it is gone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sweeper.cli import list as listing
from sweeper.sweep.folder.lock import LOCK, SweepLock, is_gone
from sweeper.system.files import write_json

JOBS = {"jobs": ["4", "5"], "workers": [{"host": "node1", "gpu": "0", "job": "4", "busy": True}]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sweep's folder that has jobs, and has not begun."""
    made = tmp_path / "sweeps" / "far"
    made.mkdir(parents=True)
    write_json(made / "jobs.json", JOBS)
    return made


def test_a_sweep_that_waits_in_the_queue_is_listed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = SweepLock(folder)
    listing.list(tmp_path)
    lock.release()
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "far                      not started",
        "job 4: node1, GPU 0, busy",
        "waiting to start: job 5",
    ]


def test_what_a_supervisor_wrote_that_is_gone_is_not_said(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    (folder / LOCK).write_text(json.dumps({"pid": int(ended.stdout), "host": socket.gethostname()}))
    listing.list(tmp_path)
    assert "No sweeps in" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        json.dumps({"pid": 1, "host": "elsewhere"}),
        json.dumps({"pid": os.getpid(), "host": socket.gethostname()}),
    ],
    ids=["no holder", "nothing", "elsewhere", "alive"],
)
def test_a_supervisor_is_gone_only_where_that_is_known(folder: Path, text: str) -> None:
    (folder / LOCK).write_text(text)
    assert not is_gone(folder)
