"""Sends to a server from a thread, so that a slow or absent server blocks nobody."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from sweeper.errors import StorageError
from sweeper.tracking.tracker import RejectedError, TrackerRefusedError

MAX_PAUSE_SECONDS = 300.0
MAX_TRIES = 3
"""Maximum number of tries per key in a `drain`, and of keys that fail in a row before it ends."""
MAX_NAMED = 3
"""Maximum number of rejections that a problem lists."""


@dataclass(frozen=True, slots=True)
class DrainResult:
    """The remainder after a `drain`.

    Attributes:
        pending: Keys that were not sent.
        problem: Why, in one line; empty if all were sent.
    """

    pending: tuple[str, ...]
    problem: str


@dataclass(slots=True)
class _UnsentState:
    """A key's latest state, which is not sent yet.

    Attributes:
        tries: Failed tries while the server was away.
        due: Time of the monotonic clock at which its next try is due; infinite if it is set aside.
        rejected: Why the server rejected it; None if it did not.
    """

    send: Callable[[], None]
    tries: int = 0
    due: float = 0.0
    rejected: str | None = None


class Sender:
    """Sends the latest state of each key, one at a time, in the order in which the keys came.

    `send` raises `StorageError` if the server is away. The pause before the key's next try doubles
    with each of its failures; the pause for all keys doubles with each further key that fails in a
    row. Both are at most five minutes. A `RejectedError` sets only this key aside until it is put
    again, or all are drained. A `TrackerRefusedError` ends all attempts, since the user has to act first.
    Any other exception counts as a rejection.
    """

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._pending: dict[str, _UnsentState] = {}
        # Not in `_UnsentState`: a key that is put again still counts.
        self._failed_in_row: set[str] = set()
        self._opens = 0.0
        self._sent = 0
        self._away = self._refused = ""
        self._draining = self._closed = False
        self._thread: threading.Thread | None = None

    def put(self, key: str, send: Callable[[], None]) -> None:
        """Schedules `send`, which replaces an earlier unsent one of `key`."""
        with self._change:
            self._pending[key] = _UnsentState(send)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sender", daemon=True)
                self._thread.start()
            self._change.notify_all()

    def wait(self, seconds: float) -> None:
        """Waits until everything is sent or something has failed, for at most `seconds`."""
        with self._change:
            self._change.wait_for(
                lambda: not self._pending or self._failed_in_row or self._reasons() or self._refused, seconds
            )

    def drain(self, seconds: float) -> DrainResult:
        """Retries unsent keys without pauses, and returns the keys that remain.

        It ends when no more keys can be sent, or none was sent for `seconds`.
        """
        with self._change:
            self._opens = 0.0
            self._pending = {key: _UnsentState(state.send) for key, state in self._pending.items()}
            self._failed_in_row.clear()
            self._draining = True
            self._change.notify_all()
            before, sent = -1, 0
            while not self._has_ended() and before != sent:
                before = self._sent
                self._change.wait_for(lambda: self._has_ended() or self._sent != before, seconds)  # noqa: B023
                sent = self._sent
            self._draining = False
            why = self._describe_failures() or f"no answer within {seconds:.3g} s"
            return DrainResult(tuple(self._pending), why if self._pending else "")

    def close(self) -> None:
        """Ends the thread; a request in progress may still arrive."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=1)

    def _has_ended(self) -> bool:
        """Returns whether a drain can make no further progress."""
        aside = all(state.due == math.inf for state in self._pending.values())
        return bool(aside or self._refused or len(self._failed_in_row) >= MAX_TRIES)

    def _reasons(self) -> list[str]:
        """Returns why keys were rejected, the earliest rejection first."""
        # Each was moved to the end when it was rejected.
        return [state.rejected for state in self._pending.values() if state.rejected is not None]

    def _describe_failures(self) -> str:
        reasons = self._reasons()
        away = [self._away] * (len(reasons) < len(self._pending))
        return self._refused or "; ".join([*reasons[:MAX_NAMED], *filter(None, away)])

    def _run(self) -> None:
        while True:
            with self._change:
                key = self._next_key()
                while key is None and not self._closed:
                    self._change.wait(self._pause_seconds())
                    key = self._next_key()
                if key is None or self._closed:
                    return
                send = self._pending[key].send
            error = _attempt(send)
            with self._change:
                self._note(key, send, error)
                self._change.notify_all()

    def _next_key(self) -> str | None:
        """Returns the first key that is due."""
        now = time.monotonic()
        if self._refused or now < self._opens or (self._draining and self._has_ended()):
            return None
        return next((key for key, state in self._pending.items() if state.due <= now), None)

    def _pause_seconds(self) -> float | None:
        """Returns the seconds until there is something to do; None until something changes."""
        earliest = min((max(self._opens, state.due) for state in self._pending.values()), default=math.inf)
        idle = self._refused or earliest == math.inf or (self._draining and self._has_ended())
        return None if idle else max(0.0, earliest - time.monotonic())

    def _note(self, key: str, send: Callable[[], None], error: Exception | None) -> None:
        """Records the result of an attempt."""
        message = str(error) if isinstance(error, StorageError) else f"{type(error).__name__}: {error}"
        away = isinstance(error, StorageError) and not isinstance(error, RejectedError)
        if error is None:
            self._sent += 1
            self._failed_in_row.clear()
            self._away = ""
        elif isinstance(error, TrackerRefusedError):
            self._refused = message
        elif away:
            self._away = message
            self._failed_in_row.add(key)
            # No pause for all after the first failed key, which may be the only one.
            self._opens = self._retry_at(len(self._failed_in_row) - 1)
        pending = self._pending[key]
        if pending.send is not send:
            return  # Something newer was put meanwhile.
        del self._pending[key]
        if error is None:
            return
        # The other keys come first.
        self._pending[key] = pending
        if away:
            pending.tries += 1
            spent = self._draining and pending.tries >= MAX_TRIES
            pending.due = math.inf if spent else self._retry_at(pending.tries)
        else:
            pending.rejected, pending.due = message, math.inf

    def _retry_at(self, failures: int) -> float:
        """Returns the monotonic time of the next try after `failures` failures; in a drain, now."""
        immediately = self._draining or failures == 0
        pause = 0.0 if immediately else min(2.0 ** min(failures - 1, 20), MAX_PAUSE_SECONDS)
        return time.monotonic() + pause


def _attempt(send: Callable[[], None]) -> Exception | None:
    try:
        send()
    except Exception as error:
        return error
    return None
