"""Handles Ctrl-C: the first one requests an orderly exit, the second one exits immediately."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class EndedError(BaseException):
    """Raised by the command line on SIGTERM or SIGHUP; unwinds like Ctrl-C."""


class StopAskedError(Exception):
    """Raised where a sweep waits, once the user has asked it to end."""


class StopHandler:
    """Handles SIGINT while a sweep runs; does nothing outside the main thread.

    Attributes:
        is_requested: Whether the sweep is to end in an orderly way.
    """

    def __init__(self) -> None:
        self.is_requested = False
        self._raised = False

    def __enter__(self) -> StopHandler:
        """Installs the signal handler."""
        self._mine = threading.current_thread() is threading.main_thread()
        if self._mine:
            self._before = signal.signal(signal.SIGINT, self._on_sigint)
        return self

    def __exit__(self, *_: object) -> None:
        """Restores the earlier handler."""
        if self._mine:
            signal.signal(signal.SIGINT, self._before)

    def _on_sigint(self, number: int, frame: FrameType | None) -> None:
        if self.is_requested:
            raise KeyboardInterrupt
        self.is_requested = True

    def check(self) -> None:
        """Raises once if the user has asked the sweep to end.

        Raises:
            StopAskedError: The user has asked, and this is the first check since.
        """
        if self.is_requested and not self._raised:
            self._raised = True
            raise StopAskedError
