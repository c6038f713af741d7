"""Samples which line of the user's code is running, by phase."""

from __future__ import annotations

import os
import signal
import sysconfig
import threading
from typing import TYPE_CHECKING, Any

INTERVAL_SECONDS = 0.002
MAX_LINES = 3

if TYPE_CHECKING:
    Line = tuple[str, int]

try:
    _STARTED_IN = os.getcwd()
except OSError:
    # The folder has been removed.
    _STARTED_IN = os.sep
"""Working directory when torch was imported. A script's paths may be relative to it even if it leaves it."""
_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_NOT_WRITTEN = ("-packages" + os.sep, "torchinductor_")
"""Parts of the paths of installed files, and of files that a compiler has generated."""
_LIBRARIES = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))


def line_of(frame: Any) -> Line:
    """Returns the innermost line of the user's own code in a stack; ("", 0) if there is none."""
    while frame is not None:
        path = os.path.normpath(os.path.join(_STARTED_IN, frame.f_code.co_filename))
        is_library = any(part in path for part in _NOT_WRITTEN) or path.startswith((*_LIBRARIES, _OURS))
        if not is_library and not frame.f_code.co_filename.startswith("<"):
            return path, frame.f_lineno
        frame = frame.f_back
    return "", 0


class LineSampler:
    """Interrupts the main thread every few milliseconds and notes its line.

    Used only once a training does not count any more, and only if nothing else handles the signal.
    """

    def __init__(self) -> None:
        self._pending: list[Line] = []
        self._counts: dict[str, dict[Line, int]] = {}
        self.is_on = False

    def start(self) -> None:
        """Starts to sample, if this is the main thread and the signal is free."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGALRM) == signal.SIG_DFL:
            self.is_on = True
            signal.signal(signal.SIGALRM, self._sample)
            # The system calls in which libraries wait are restarted.
            signal.siginterrupt(signal.SIGALRM, False)
            signal.setitimer(signal.ITIMER_REAL, INTERVAL_SECONDS, INTERVAL_SECONDS)

    def stop(self) -> None:
        """Stops sampling."""
        if self.is_on:
            self.is_on = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def _sample(self, _: int, frame: Any) -> None:
        self._pending.append(line_of(frame))

    def assign_phase(self, name: str) -> None:
        """Assigns the samples since the last call to a phase."""
        counts = self._counts.setdefault(name, {})
        pending, self._pending = self._pending, []
        for line in pending:
            counts[line] = counts.get(line, 0) + 1

    def lines(self) -> dict[str, list[list[Any]]]:
        """Returns the most frequent lines of each phase: file, line, and share of all samples."""
        total = sum(sum(lines.values()) for lines in self._counts.values()) or 1
        return {
            name: [
                [*line, count / total]
                for line, count in sorted(lines.items(), key=lambda pair: -pair[1])[:MAX_LINES]
                if line[0]
            ]
            for name, lines in self._counts.items()
        }
