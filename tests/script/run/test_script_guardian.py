"""A script outside of a sweep ends with the command that started it, even if that is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from sweeper.script.run import guardian

STARTS = """
import os, subprocess, sys, time
from sweeper.script.run.guardian import guarded
with guarded(sys.argv[1]) as own:
    # In a session of its own, as a launcher's children are.
    child = [sys.executable, "-c", "import time; time.sleep(60)"]
    script = subprocess.Popen(child, env={**os.environ, **own}, start_new_session=True)
    print(script.pid, flush=True)
    if sys.argv[2] == "wait":
        time.sleep(60)
    if sys.argv[2] != "leave":
        script.kill()
        script.wait()
"""


def started(folder: Path, how: str) -> tuple[subprocess.Popen[str], int]:
    folder.mkdir()
    command = [sys.executable, "-c", STARTS, str(folder), how]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def ended(pid: int, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


def test_a_kill_ends_the_script_and_removes_its_folder(tmp_path):
    folder = tmp_path / "work"
    process, script = started(folder, "wait")
    assert not ended(script, 0.3)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert ended(script)
    deadline = time.monotonic() + 10
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not folder.exists()


def test_a_usual_end_leaves_the_folder_alone(tmp_path):
    folder = tmp_path / "work"
    process, _ = started(folder, "go on")
    process.communicate()
    assert process.returncode == 0
    assert folder.exists()


def test_what_a_script_leaves_running_is_ended(tmp_path):
    """Such as the workers of a launcher that was killed."""
    process, script = started(tmp_path / "work", "leave")
    # Not `communicate`, which would wait for the script: it has the same output.
    assert process.wait(20) == 0
    assert ended(script, 0.5)
    process.communicate()


def test_other_processes_are_not_touched(tmp_path):
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        process, script = started(tmp_path / "work", "wait")
        process.kill()
        process.communicate()
        assert ended(script)
        assert other.poll() is None
        assert guardian._processes(str(tmp_path / "work")) == []
    finally:
        other.kill()
        other.wait()


def test_a_stopped_script_ends_with_a_command_that_ends_its_children_first(tmp_path):
    """As `sweeper` does after a third Ctrl-C: a stopped process does not end by SIGTERM."""
    process, script = started(tmp_path / "work", "wait")
    os.kill(script, signal.SIGSTOP)
    for child in psutil.Process(process.pid).children():
        child.terminate()
    process.send_signal(signal.SIGKILL)
    try:
        assert ended(script)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(script, signal.SIGKILL)
        process.communicate()
