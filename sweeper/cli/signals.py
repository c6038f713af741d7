"""Handles signals on the command line: an orderly exit if there is time for one, else a hard one.

first SIGINT in a sweep       the sweep handles it (`sweep.stopping`) and has 25 s
first signal otherwise        an exception unwinds and has 4 s (`train`, which saves: 25 s; `judge`: 15 s)
second signal                 1.5 s are left
third signal                  the process ends immediately

The exit code is that of the first signal. A thread enforces the deadlines, because an exception may
be swallowed or meet code that blocks. Modules that Cython compiled swallow what is raised while they
are imported, and the program would go on: the thread has it raised again.

This module is loaded before anything else, so neither it nor those it imports need more than the standard
library.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from sweeper.cli.exit_codes import BUG, HUNG_UP, INTERRUPTED, TERMINATED
from sweeper.sweep.stopping import EndedError

CODES = {signal.SIGHUP: HUNG_UP, signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}
_NAMES = {signal.SIGHUP: "terminal closed", signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
UNWINDING_SECONDS = 4.0
ORDERLY_SECONDS = 25.0
"""Time for a sweep that handles Ctrl-C: 20 s for a confirmation, the rest to print the results."""
ANSWER_SECONDS = 15.0
"""Time to end what is being measured, and to print the answer so far."""
CLUSTER_SECONDS = 20.0
"""Time to end jobs elsewhere, in addition to an orderly exit; most batch systems wait for 30 s."""
AT_ONCE_SECONDS = 1.5
IMPORT_SECONDS = 0.02
"""Time for an exception to leave an import, which takes microseconds."""
_SHOW_CURSOR = b"\x1b[?25h\r"


class SignalHandler:
    """Handles the signals of this process for good. Create it in a program's main thread only.

    Attributes:
        first: The first signal received; 0 before one.
        count: Number of signals received.
        unwinding: Whether an exception was raised here for a signal.
        unwinding_seconds: Time for that exception before a hard end.
        orderly_seconds: Time for a Ctrl-C that is handled elsewhere, as by a sweep; None for no limit.
    """

    def __init__(self) -> None:
        self.first = 0
        self.count = 0
        self.unwinding = False
        self.unwinding_seconds = UNWINDING_SECONDS
        self.orderly_seconds: float | None = ORDERLY_SECONDS
        self._code: int | None = None
        self._in_import: BaseException | None = None
        self._repeats = 0
        self._saying = threading.Lock()
        self._wake, self._wake_end = os.pipe()
        os.set_blocking(self._wake_end, False)
        threading.Thread(target=self._watch, name="ending", daemon=True).start()
        # A forked child must not act for this process: until its signals have their defaults,
        # it would write to this one's pipe.
        os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_restore_defaults)
        sys.unraisablehook = self._on_unraisable
        signal.set_wakeup_fd(self._wake_end, warn_on_full_buffer=False)
        for number in CODES:
            # `nohup` starts a program with SIGHUP ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)

    def may_speak(self) -> bool:
        """Returns whether the line about the end is still to be printed; True only once."""
        return self._saying.acquire(blocking=False)

    def end(self, code: int) -> NoReturn:
        """Ends the process with `code`, which nothing can change any more.

        Python's own shutdown would print a late signal as an error.
        """
        self._code = code
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.unwinding or self._code is not None:
            return
        self.first = self.first or number
        self.unwinding = True
        if (logging := sys.modules.get("logging")) is not None:
            # Libraries log exceptions that unwind through them, with a traceback.
            logging.disable(logging.CRITICAL)
        error = KeyboardInterrupt() if number == signal.SIGINT else EndedError()
        if _is_importing(frame):
            self._in_import = error
            with contextlib.suppress(OSError):
                os.write(self._wake_end, b"\0")
        raise error

    def _on_unraisable(self, unraisable: Any) -> None:
        # Python prints an exception that cannot propagate, as in `__del__`; this one is expected.
        if not self.first:
            sys.__unraisablehook__(unraisable)

    def _watch(self) -> None:
        deadline: float | None = None
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            pause = left if left is None or self._in_import is None else min(left, IMPORT_SECONDS)
            if not select.select([self._wake], [], [], pause)[0]:
                if pause == left:
                    self._end_hard()
                self._repeat_if_swallowed()
                continue
            for number in os.read(self._wake, 64):
                if number not in CODES:
                    continue
                if self._repeats:
                    self._repeats -= 1
                    continue
                self.count += 1
                self.first = self.first or number
                seconds: float | None = AT_ONCE_SECONDS
                if self.count == 1:
                    elsewhere = signal.getsignal(number) != self._on_signal
                    seconds = self.orderly_seconds if elsewhere else self.unwinding_seconds
                elif self.count > 2:
                    self._end_hard()
                if seconds is not None:
                    end = time.monotonic() + seconds
                    deadline = end if deadline is None else min(deadline, end)

    def _repeat_if_swallowed(self) -> None:
        """Raises the exception again if the main thread neither propagates nor handles it any more."""
        raised, self._in_import = self._in_import, None
        main = threading.main_thread().ident
        assert raised is not None
        assert main is not None
        active = sys._current_exceptions().get(main)
        # A tuple before Python 3.12.
        error = active[1] if isinstance(active, tuple) else active
        while error is not None and error is not raised:
            error = error.__context__
        if error is None and self._code is None:
            self.unwinding = False
            self._repeats += 1
            signal.pthread_kill(main, self.first)

    def _end_hard(self) -> NoReturn:
        """Ends the process and its children without waiting for anything, even buffered output."""
        code = self._code
        if code is None:
            code = code_of(self.first)
            if self.may_speak():
                _write(2, (line_of(self.first) + "\n").encode())
        if os.isatty(1):
            _write(1, _SHOW_CURSOR)
        for pid in _children():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)
        os._exit(code)


_handler: SignalHandler | None = None


def current_handler() -> SignalHandler | None:
    """Returns the handler of this process's signals; None outside the command line, as in a test."""
    return _handler


def code_of(number: int) -> int:
    """Returns the exit code of a process that the signal `number` ended."""
    return CODES[signal.Signals(number)]


def line_of(number: int) -> str:
    """Returns the line to print when the signal `number` ends the process."""
    name = _NAMES[signal.Signals(number)]
    return f"sweeper: stopped ({name}). Finished work is kept; run the same command to continue."


def report_stop(number: int) -> int:
    """Prints that `number`, or an earlier signal, ended the program; returns the exit code."""
    number = _handler.first or number if _handler else number
    if _handler is None or _handler.may_speak():
        with contextlib.suppress(OSError):
            print(line_of(number), file=sys.stderr, flush=True)
    return code_of(number)


def allow(unwinding_seconds: float, orderly_seconds: float | None) -> None:
    """Changes the deadlines of this program: see `SignalHandler`. A later call replaces an earlier one.

    So `allow_answer` and `allow_cluster` exclude each other.
    """
    if _handler is not None:
        _handler.unwinding_seconds, _handler.orderly_seconds = unwinding_seconds, orderly_seconds


def allow_answer() -> None:
    """Gives this program time to say what it has measured."""
    allow(ANSWER_SECONDS, ORDERLY_SECONDS)


def allow_cluster() -> None:
    """Gives this program time to end jobs and workers elsewhere."""
    allow(CLUSTER_SECONDS, ORDERLY_SECONDS + CLUSTER_SECONDS)


def run_with_signals(program: Callable[[], object]) -> NoReturn:
    """Runs `program`, and ends the process with its exit code."""
    global _handler
    # A signal between two of the handler's lines waits until there is something to catch it.
    _block()
    _handler = handler = SignalHandler()
    try:
        _unblock()
        code = _outcome(program)
    except BaseException:
        # Raised before `_outcome` or between two of its lines. A signal raises only once.
        code = report_stop(signal.SIGTERM)
    handler.end(code)


def _outcome(program: Callable[[], object]) -> int:
    assert _handler is not None
    try:
        program()
    except SystemExit as exited:
        return exited.code if isinstance(exited.code, int) else 0 if exited.code is None else 1
    except BaseException as error:
        if _handler.first:
            # For any exception, because some libraries raise another one in its place.
            return report_stop(_handler.first)
        print(f"sweeper: cannot start: {type(error).__name__}: {error}", file=sys.stderr)
        return BUG
    return 0


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def _block() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, CODES)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, CODES)


def _restore_defaults() -> None:
    signal.set_wakeup_fd(-1)
    for number in CODES:
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, default)
    _unblock()


def _children() -> list[int]:
    pids = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/children", encoding="ascii") as file:
            pids += [int(pid) for pid in file.read().split()]
    return pids


def _write(descriptor: int, text: bytes) -> None:
    """Writes unless the pipe is full, which would block."""
    with contextlib.suppress(OSError):
        if select.select([], [descriptor], [], 0.2)[1]:
            os.write(descriptor, text)
