"""A pytest plugin that makes a run independent of where it is started, and has it leave nothing behind.

- What a test starts has the usual signal dispositions, whatever this process inherited.
- A test's processes end with it. One that leaves some behind fails, and so does a run that does.
- A test that is marked `alone` runs while no other does.
- A test has a time limit. Its processes are killed soon after it, and also when the pytest process dies.
- The last lines of a run say what was skipped, and why.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import guard
import pytest
import turns

LIMIT_SECONDS = 300.0
SLOW_LIMIT_SECONDS = 1800.0
"""Of tests that `make check` and `make soak` run."""
GRACE_SECONDS = 10.0
"""What processes have that are told to end, or whose pipe is closed: on a busy core it takes a while."""
RUN_GRACE_SECONDS = 20.0

_FAILED = pytest.StashKey[bool]()
_LEFT = pytest.StashKey[str]()
_SLOW = ("slow", "soak", "slurm", "browser")


def pytest_configure(config: pytest.Config) -> None:
    _use_usual_signals(is_worker=hasattr(config, "workerinput"))
    if not hasattr(config, "workerinput"):
        run = f"{os.getpid()}-{time.time_ns()}"
        # A run inside of a test is that test's, too.
        os.environ[guard.MARK] = f"{os.environ.get(guard.MARK, '')} {run}".strip()
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(_Tests(), "leftovers-of-tests")


def _use_usual_signals(*, is_worker: bool) -> None:
    """A signal that this process ignores is ignored by all that it starts, one that it handles is not.

    A shell without job control has background jobs ignore SIGINT and SIGQUIT; `nohup` and cron have them
    ignore SIGHUP. SIGPIPE is ignored by Python itself, and reset by `subprocess`.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    # This process itself goes on when the terminal is closed, if it was started to. A worker of xdist ends
    # with the process that started it.
    if is_worker or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda number, frame: None)
        os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))


class _Tests:
    """Watches the tests that this process runs."""

    def __init__(self) -> None:
        words = os.environ[guard.MARK].split()
        self._outer, self._word = words, f"{words[-1]}.{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
        self._count = 0
        self._shared = set[int]()
        """Processes which wider fixtures started, and that cannot be told by their mark."""
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", Path(guard.__file__), f"{self._word}.", str(os.getpid())],
            env={name: value for name, value in os.environ.items() if name != guard.MARK},
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._before = guard.pids()
        signal.signal(guard.LIMIT_SIGNAL, self._on_limit)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, bool, bool]:
        # A run inside of a test has that test's turn.
        has_turn, is_alone = len(self._outer) > 1, item.get_closest_marker("alone") is not None
        with contextlib.nullcontext() if has_turn else turns.turn(is_alone=is_alone):
            self._count += 1
            self._mark(str(self._count))
            self._before = guard.pids()
            slow = any(item.get_closest_marker(name) for name in _SLOW)
            self._limit = SLOW_LIMIT_SECONDS if slow else LIMIT_SECONDS
            self._tell(f"{self._limit}\n")
            try:
                return (yield)
            finally:
                self._tell("\n")
                self._mark("shared")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        mark, before = os.environ[guard.MARK], guard.pids()
        self._mark("shared")
        try:
            return (yield)
        finally:
            os.environ[guard.MARK] = mark
            self._shared |= guard.pids() - before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed:
            item.stash[_FAILED] = True
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        failed = True
        try:
            yield
            failed = item.stash.get(_FAILED, False)
        finally:
            left = guard.gone(self._left, 0 if failed else GRACE_SECONDS)
            said = guard.described(left)
            if left:
                guard.kill(self._left)
            if failed:
                _forget_children()
        if left and not failed:
            pytest.fail(f"the test ended, and what it had started did not:\n{said}", pytrace=False)

    def pytest_sessionfinish(self) -> None:
        self._tell("end\n")
        self._guard.communicate()

    def _mark(self, name: str) -> None:
        os.environ[guard.MARK] = " ".join([*self._outer, f"{self._word}.{name}"])

    def _tell(self, line: str) -> None:
        assert self._guard.stdin is not None
        self._guard.stdin.write(line.encode())
        self._guard.stdin.flush()

    def _left(self) -> list[int]:
        """Returns the processes of this test that live."""
        return guard.living(self._is_of_test, self._before | self._shared)

    def _is_of_test(self, pid: int) -> bool:
        # A server may write over its own environment, as PostgreSQL's processes do: then its parent tells.
        for each in (pid, *guard.parents(pid)):
            words = guard.words_of(each)
            if any(word.startswith(f"{self._word}.") for word in words):
                return f"{self._word}.{self._count}" in words
        # Started with an environment made from nothing, or forked off this process.
        family = set(guard.parents(pid))
        return os.getpid() in family and not family & self._shared and self._guard.pid != pid

    def _on_limit(self, number: int, frame: object) -> None:
        pytest.fail(f"the test took longer than {self._limit:g} s")


def _forget_children() -> None:
    """Tells Popen objects that their processes are gone: else they would warn, and fail a later test."""
    for each in gc.get_objects():
        # Not `isinstance`: some objects of torch warn when they are asked for their class.
        if issubclass(type(each), subprocess.Popen) and each.returncode is None:
            each.poll()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    # The workers are gone after this.
    yield
    if hasattr(session.config, "workerinput"):
        return
    run = os.environ[guard.MARK].split()[-1].partition(".")[0]

    def of_run() -> list[int]:
        return guard.living(lambda pid: any(word.split(".")[0] == run for word in guard.words_of(pid)))

    if left := guard.gone(of_run, RUN_GRACE_SECONDS):
        session.config.stash[_LEFT] = guard.described(left)
        guard.kill(of_run)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    reasons = collections.Counter(
        str(report.longrepr[2]).removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    )
    if reasons:
        terminalreporter.section("skipped")
        for reason, count in reasons.most_common():
            terminalreporter.line(f"{count:4} {' '.join(reason.split())[:160]}")
    if chosen := config.getoption("markexpr"):
        terminalreporter.line(f"Run were the tests that are: {chosen}.")
    if left := config.stash.get(_LEFT, ""):
        terminalreporter.section("processes left by this run", red=True)
        terminalreporter.line(left)
