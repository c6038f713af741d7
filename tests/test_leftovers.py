"""The runs of the tests themselves: usual signals, nothing left behind, a limit, and what was skipped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import guard
import pytest

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent
SLEEP = "sleep 4321.25"
"""What the tests of these runs leave behind."""
START = f"""
import os, signal, subprocess, time
import pytest

def start(*prefix, **options):
    return subprocess.Popen([*prefix, *{SLEEP.split()!r}], **options)
"""
DISPOSITIONS = """
from pathlib import Path

def ignored(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    masks = (int(status.partition(name)[2].split()[0], 16) for name in ("SigIgn:", "SigBlk:"))
    # 32 and 33 are the C library's own, and nobody else can set them.
    return [mask & ~(0b11 << 31) for mask in masks]

def test_all_are_as_usual():
    process = start()
    there, told = os.pipe()
    forked = os.fork()
    if not forked:
        os.write(told, b".")
        time.sleep(60)
        os._exit(0)
    os.read(there, 1)
    found = ignored(process.pid)
    os.kill(forked, signal.SIGHUP)
    process.kill()
    process.wait()
    assert found == [0, 0]
    assert os.WTERMSIG(os.waitpid(forked, 0)[1]) == signal.SIGHUP
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def pytest_run(tmp_path: Path) -> Run:
    """Runs tests in a folder of their own, with this folder's plugin."""

    def run(
        code: str, *arguments: str, prefix: str = "", limit: float = 300.0
    ) -> subprocess.CompletedProcess[str]:
        (tmp_path / "conftest.py").write_text(
            'pytest_plugins = ["leftovers"]\n'
            "def pytest_sessionstart(session):\n"
            "    import leftovers\n"
            f"    leftovers.LIMIT_SECONDS = {limit}\n"
            "    leftovers.GRACE_SECONDS = leftovers.RUN_GRACE_SECONDS = 0.5\n"
        )
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        (tmp_path / "test_it.py").write_text(START + code)
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        return subprocess.run(
            ["bash", "-c", f'{prefix} exec "$@"', "-", *words],
            cwd=tmp_path,
            # Not beside the folders of other runs: it would remove the older of them.
            env={**os.environ, "PYTHONPATH": str(TESTS), "PYTEST_DEBUG_TEMPROOT": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def left() -> list[int]:
    """Processes of these runs that live: all that is in a test's run bears its mark, too."""
    mine = os.environ[guard.MARK].split()[-1]
    return guard.living(lambda pid: mine in guard.words_of(pid) and SLEEP.encode() in guard.command_of(pid))


@pytest.mark.parametrize("workers", ["0", "1"])
def test_signals_are_as_usual_whatever_was_inherited(pytest_run: Run, workers: str):
    done = pytest_run(DISPOSITIONS, "-n", workers, prefix="trap '' INT HUP QUIT PIPE;")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_run_outlives_its_terminal_only_if_it_was_to(pytest_run: Run, workers: str):
    others = f"{{os.getpid(), os.getppid()}} - {{{os.getpid()}}}"
    code = f"def test_it():\n    for pid in {others}:\n        os.kill(pid, signal.SIGHUP)\n"
    done = pytest_run(code, "-n", workers, prefix="trap '' HUP;")
    assert done.returncode == 0, done.stdout
    assert pytest_run(code, "-n", workers).returncode == -signal.SIGHUP


@pytest.mark.parametrize("workers", ["0", pytest.param("1", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "how",
    [
        "start()",
        pytest.param("start('setsid', '-f')", marks=pytest.mark.slow),
        "start(start_new_session=True, env={})",
        # Of the environment it has what the product passes to a trial.
        "start('setsid', '-f', env={name: os.environ[name] for name in os.environ if 'SWEEPER' in name})",
    ],
    ids=["child", "daemon", "bare", "product"],
)
def test_what_a_test_leaves_is_ended_and_told(pytest_run: Run, how: str, workers: str):
    done = pytest_run(f"def test_it():\n    {how}\n    time.sleep(0.3)\n", "-n", workers)
    assert done.returncode == 1
    assert "ERROR at teardown of test_it" in done.stdout
    assert SLEEP in done.stdout
    assert left() == []


def test_what_a_failed_test_leaves_is_ended_and_fails_no_other(pytest_run: Run):
    code = (
        "def test_it():\n    process = start()\n    assert not process\n"
        "def test_another():\n    import gc, sys\n    sys.last_value = sys.last_traceback = None\n"
        "    gc.collect()\n"
    )
    done = pytest_run(
        code, "-W", "error::ResourceWarning", "-W", "error::pytest.PytestUnraisableExceptionWarning"
    )
    assert "1 failed, 1 passed" in done.stdout
    assert left() == []


def test_what_a_wider_fixture_starts_stays_until_it_ends(pytest_run: Run):
    code = (
        "@pytest.fixture(scope='module')\ndef service():\n"
        "    process = start(env={})\n    yield process\n    process.kill()\n    process.wait()\n"
        "def test_it(service):\n    assert service.poll() is None\n"
        "def test_another(service):\n    assert service.poll() is None\n"
    )
    done = pytest_run(code)
    assert done.returncode == 0, done.stdout
    assert left() == []


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_run_that_leaves_a_process_fails(pytest_run: Run, workers: str):
    code = "@pytest.fixture(scope='module')\ndef service():\n    start('setsid', '-f')\n"
    code += "def test_it(service):\n    pass\n"
    done = pytest_run(code, "-n", workers)
    assert done.returncode == 1, done.stdout
    assert "processes left by this run" in done.stdout
    assert "1 passed" in done.stdout
    assert left() == []


@pytest.fixture
def sleeper() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(**options: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(SLEEP.split(), **options))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait()


def test_what_a_process_starts_while_it_is_looked_for_is_found(sleeper, monkeypatch: pytest.MonkeyPatch):
    process = sleeper()
    listed = [{os.getppid()}, {os.getppid(), process.pid}]
    with monkeypatch.context() as patch:
        patch.setattr(guard, "pids", lambda: listed.pop(0) if len(listed) > 1 else listed[0])
        assert guard.living(lambda pid: pid == process.pid) == [process.pid]


def test_a_process_that_is_being_loaded_is_waited_for(sleeper, monkeypatch: pytest.MonkeyPatch):
    pid, read, looks = sleeper().pid, guard._read, list[str]()
    mark = guard.words_of(pid)  # Waits for it, should it be so.
    assert mark

    def in_exec(pid: int, name: str) -> bytes:
        looks.append(name)
        return b"" if len(looks) < 6 else read(pid, name)

    with monkeypatch.context() as patch:
        patch.setattr(guard, "_read", in_exec)
        patch.setattr(guard, "EXEC_SECONDS", 60.0)
        assert guard.words_of(pid) == mark


def test_one_without_an_environment_is_not_waited_for(sleeper, monkeypatch: pytest.MonkeyPatch):
    process = sleeper(env={})
    while SLEEP.encode() not in guard.command_of(process.pid):
        time.sleep(0.01)  # It is being loaded itself.
    with monkeypatch.context() as patch:
        patch.setattr(guard, "EXEC_SECONDS", 60.0)
        patch.setattr(guard.time, "sleep", lambda seconds: pytest.fail("it waits"))
        assert guard.words_of(process.pid) == []


@pytest.mark.parametrize(
    "waits",
    [
        "time.sleep(60)",
        pytest.param("start().wait()", marks=pytest.mark.slow),
        pytest.param("with start(): time.sleep(60)", marks=pytest.mark.soak),
    ],
    ids=["itself", "a child", "a child at the end, too"],
)
def test_a_test_that_takes_too_long_fails_and_is_ended(pytest_run: Run, waits: str):
    began = time.monotonic()
    done = pytest_run(f"def test_it():\n    {waits}\ndef test_another():\n    pass\n", limit=1.0)
    assert "1 failed, 1 passed" in done.stdout
    assert "the test took longer than 1 s" in done.stdout
    assert time.monotonic() - began < 50
    assert left() == []


def test_a_pytest_process_that_dies_takes_everything_along(pytest_run: Run):
    code = "def test_it():\n    start('setsid', '-f')\n    time.sleep(0.3)\n"
    code += "    os.kill(os.getpid(), signal.SIGKILL)\n"
    assert pytest_run(code).returncode == -signal.SIGKILL
    assert guard.gone(left, 20) == []


def test_what_was_skipped_is_told_with_its_reason(pytest_run: Run):
    code = (
        "@pytest.mark.skipif(True, reason='no moon')\n@pytest.mark.parametrize('n', [1, 2, 3])\n"
        "def test_it(n):\n    pass\n"
        "def test_another():\n    pytest.importorskip('no_such_module')\n"
        "def test_more():\n    pass\n"
    )
    lines = pytest_run(code, "-m", "not slow", "-n", "1").stdout.splitlines()
    assert "   3 no moon" in lines
    assert "   1 could not import 'no_such_module': No module named 'no_such_module'" in lines
    assert "Run were the tests that are: not slow." in lines
