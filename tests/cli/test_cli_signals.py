"""How the command line ends: signals while it starts, while a sweep runs, and twice; and a disk's errors."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sweeper.cli import app, signals
from sweeper.sweep.stopping import EndedError

REPOSITORY = Path(__file__).parents[2]
CONTINUES = "Finished work is kept; run the same command to continue."
PRELUDE = """\
import atexit, os, signal, sys, threading, time
from sweeper.cli import signals
def ready():
    os.write(1, b"ready\\n")
"""


def started(code: str) -> subprocess.Popen[str]:
    """A program of this package's kind, which has said that it is where a signal is to meet it."""
    process = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def ended(
    process: subprocess.Popen[str], code: int, most_seconds: float, says: int = 1, prints: str = ""
) -> str:
    """Waits for its end, and returns what it said; the line about the end is there so many times."""
    began = time.monotonic()
    printed, said = process.communicate(timeout=30)
    assert printed == prints
    assert process.returncode == code, said
    assert time.monotonic() - began < most_seconds
    assert said.count(CONTINUES) == says
    for bad in ("Traceback", "Exception ignored", "Logging error"):
        assert bad not in said
    return said


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_in_the_first_moments_is_one_line(number, code):
    process = started(
        """
import runpy
class Slow:
    def find_spec(self, name, path, target=None):
        if name == "typer":
            ready()
            time.sleep(60)
sys.meta_path.insert(0, Slow())
sys.argv = ["sweeper", "list"]
runpy.run_module("sweeper", run_name="__main__")
"""
    )
    process.send_signal(number)
    assert ended(process, code, 5.0).count("\n") == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_import_that_swallows_the_exception_delays_the_end_by_little(number, code):
    """As modules do that Cython compiled, those of PyYAML and pandas among them."""
    process = started(
        """
class Swallows:
    def find_spec(self, name, path, target=None):
        try:
            ready()
            time.sleep(60)
        except BaseException:
            pass
def program():
    sys.meta_path.insert(0, Swallows())
    try:
        import swallowed
    except ModuleNotFoundError:
        sys.meta_path.pop(0)
    time.sleep(60)
signals.run_with_signals(program)
"""
    )
    process.send_signal(number)
    ended(process, code, 2.0)


def test_what_handles_the_exception_of_an_import_is_not_disturbed():
    process = started(
        """
class Slow:
    def find_spec(self, name, path, target=None):
        ready()
        time.sleep(60)
def program():
    sys.meta_path.insert(0, Slow())
    try:
        import slow
    finally:
        sys.meta_path.pop(0)
        time.sleep(0.3)
        print("tidied up")
signals.run_with_signals(program)
"""
    )
    process.send_signal(signal.SIGTERM)
    ended(process, 143, 2.0, prints="tidied up\n")


def test_signals_while_they_begin_to_be_handled_are_one_line():
    process = started(
        """
usual = signal.signal
def hastily(number, handler):
    usual(number, handler)
    # A third one would end it hard.
    if number != signal.SIGINT:
        os.kill(os.getpid(), number)
signal.signal = hastily
ready()
signals.run_with_signals(lambda: time.sleep(60))
"""
    )
    ended(process, 129, 2.0)


def test_what_swallows_the_exception_is_ended_hard_and_takes_its_children_along():
    process = started(
        """
import subprocess
def program():
    child = subprocess.Popen(["sleep", "97"])
    os.write(2, f"{child.pid}\\n".encode())
    said = False
    while True:
        try:
            if not said:
                said = True
                ready()
            time.sleep(60)
        except BaseException:
            pass
signals.UNWINDING_SECONDS = 0.3
signals.run_with_signals(program)
"""
    )
    process.send_signal(signal.SIGTERM)
    said = ended(process, 143, 2.0)
    child = int(said.split()[0])
    time.sleep(0.2)
    assert not Path(f"/proc/{child}/cmdline").exists() or Path(f"/proc/{child}/cmdline").read_bytes() == b""


DEAF = """
def program():
    try:
        ready()
        time.sleep(60)
    finally:
        time.sleep(60)
"""


@pytest.mark.parametrize(
    ("first", "second", "code"), [(signal.SIGINT, signal.SIGTERM, 130), (signal.SIGTERM, signal.SIGTERM, 143)]
)
def test_a_second_signal_leaves_little_time_and_the_code_is_the_firsts(first, second, code):
    process = started(
        DEAF
        + """
signals.UNWINDING_SECONDS, signals.AT_ONCE_SECONDS = 50.0, 0.4
signals.run_with_signals(program)
"""
    )
    process.send_signal(first)
    time.sleep(0.2)
    process.send_signal(second)
    ended(process, code, 1.4)


def test_a_third_signal_is_the_end():
    process = started(
        DEAF
        + """
signals.UNWINDING_SECONDS = signals.AT_ONCE_SECONDS = 50.0
signals.run_with_signals(program)
"""
    )
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    ended(process, 130, 2.0)


def test_a_sweep_that_takes_ctrl_c_itself_has_its_own_time():
    process = started(
        """
from sweeper.sweep.stopping import StopHandler
def program():
    with StopHandler() as stopping:
        ready()
        while not stopping.is_requested:
            time.sleep(0.01)
        time.sleep(0.6)  # It confirms.
    print("confirmed", file=sys.stderr)
    sys.exit(130)
signals.UNWINDING_SECONDS = 0.2
signals.run_with_signals(program)
"""
    )
    process.send_signal(signal.SIGINT)
    assert "confirmed" in ended(process, 130, 5.0, says=0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_after_the_program_has_ended_changes_nothing(number):
    process = started(
        """
def late():
    ready()
    time.sleep(0.5)
    os.write(1, b"cleaned up")
atexit.register(late)
signals.run_with_signals(lambda: sys.exit(7))
"""
    )
    process.send_signal(number)
    assert process.stdout is not None
    assert ended(process, 7, 5.0, says=0, prints="cleaned up") == ""


def test_a_thread_that_goes_on_keeps_nobody_from_the_end():
    """Python would wait for it, and print what a signal does to that."""
    process = started(
        """
def program():
    threading.Thread(target=time.sleep, args=[60]).start()
    ready()
    sys.exit(7)
signals.run_with_signals(program)
"""
    )
    ended(process, 7, 5.0, says=0)


def test_what_an_exception_meets_on_its_way_is_not_printed():
    """In `__del__`, in a library that logs it, and in one that makes another error of it."""
    process = started(
        """
import logging
class Deaf:
    def __del__(self):
        ready()
        time.sleep(60)
def program():
    deaf = Deaf()
    del deaf
    try:
        raise KeyboardInterrupt
    except BaseException:
        logging.getLogger("sqlalchemy.pool").error("Exception during reset", exc_info=True)
        raise RuntimeError("did not possess lock")
signals.run_with_signals(program)
"""
    )
    process.send_signal(signal.SIGTERM)
    ended(process, 143, 5.0)


def test_a_full_pipe_is_not_waited_for():
    process = started(
        """
def program():
    pause = ready
    while True:
        try:
            pause()
            pause = lambda: os.write(2, b"x" * 65536)
        except BaseException:
            pass
signals.UNWINDING_SECONDS = 0.3
signals.run_with_signals(program)
"""
    )
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert process.wait(5.0) == 130
    process.communicate()


def test_a_process_forked_off_is_not_taken_for_this_one():
    process = started(
        """
def program():
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    os.kill(pid, signal.SIGTERM)
    _, status = os.waitpid(pid, 0)
    ready()
    time.sleep(0.3)
    sys.exit(os.waitstatus_to_exitcode(status) == -signal.SIGTERM)
signals.run_with_signals(program)
"""
    )
    ended(process, 1, 5.0, says=0)


def test_in_a_test_no_signal_is_taken_and_nothing_ends_the_process(monkeypatch):
    before = {number: signal.getsignal(number) for number in signals.CODES}
    monkeypatch.setattr(sys, "argv", ["sweeper", "--version"])
    with pytest.raises(SystemExit) as exited:
        app.run_app()
    assert exited.value.code == 0
    assert signals.current_handler() is None
    assert {number: signal.getsignal(number) for number in signals.CODES} == before


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "a/file"), 6, "cannot write a/file: No space left"),
        (OSError(errno.EIO, "Input/output error"), 6, "cannot write: Input/output error. Check the disk"),
        (KeyboardInterrupt(), 130, CONTINUES),
        (ValueError("odd"), 70, "a bug in sweeper (ValueError: odd). The traceback is in "),
    ],
)
def test_whatever_comes_up_is_one_line(monkeypatch, capsys, error, code, says, tmp_path):
    def raising(**_: object) -> int:
        raise error

    monkeypatch.setattr(app, "app", raising)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with pytest.raises(SystemExit) as exited:
        app.run_app()
    assert exited.value.code == code
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_a_bug_without_a_place_for_its_traceback_says_where_it_is(monkeypatch, capsys):
    def raising(**_: object) -> int:
        raise ValueError("odd")

    def full(*_: object, **__: object) -> None:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(app, "app", raising)
    monkeypatch.setattr("tempfile.NamedTemporaryFile", full)
    with pytest.raises(SystemExit):
        app.run_app()
    assert "test_cli_signals.py:" in capsys.readouterr().err


def test_ended_is_no_ordinary_exception():
    """`except Exception` must not stop it."""
    assert not issubclass(EndedError, Exception)
    assert not issubclass(EndedError, KeyboardInterrupt)
